"""Block-scaled arithmetic: the format, the products, and their kernels."""
