"""One file per question; each is a config, or a diff of one."""
