"""Asynchronous reinforcement learning of tool-using coding models in JAX."""
