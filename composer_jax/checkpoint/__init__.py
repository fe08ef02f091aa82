"""Weights for the sampler, train states for a restart: pytrees on disk."""
