"""The running whole: the rooms wired by config, and the only threads."""
