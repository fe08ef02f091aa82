"""What the policy can do: tools, and the boxes in which they run."""
