"""What an episode is worth: named terms, and how they add up."""
