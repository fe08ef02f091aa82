"""Side-by-side measurements: one command each, ratios within one run."""
