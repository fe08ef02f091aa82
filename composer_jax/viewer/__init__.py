"""Pages to look at: what one run did, and how it went."""
