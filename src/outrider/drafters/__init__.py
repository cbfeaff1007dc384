"""Drafting methods, one per file; a file is imported only when its method is chosen."""
