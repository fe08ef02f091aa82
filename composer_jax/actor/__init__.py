"""One task in, one trajectory out."""
