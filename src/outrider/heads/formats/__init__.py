"""Heads of other projects: one file for each format, which says what it recognises, how it is read and written."""
