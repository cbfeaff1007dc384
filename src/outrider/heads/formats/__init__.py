"""Formats of other projects' heads, one per file: recognise, read and write."""
