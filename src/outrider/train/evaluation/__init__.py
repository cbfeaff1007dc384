"""Evaluates a head on held-out texts."""
