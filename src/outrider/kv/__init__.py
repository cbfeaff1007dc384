"""Paged keys and values."""
