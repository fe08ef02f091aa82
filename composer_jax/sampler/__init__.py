"""Batched decoding with a key-value cache; token ids in, token ids out."""
