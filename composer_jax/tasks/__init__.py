"""Repair tasks made from real code: mutation, validation, storage, order."""
