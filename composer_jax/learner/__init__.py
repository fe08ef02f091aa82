"""Groups in, better parameters out: pure maths, jitted."""
