"""Divergences a draft is trained on, one per file."""
