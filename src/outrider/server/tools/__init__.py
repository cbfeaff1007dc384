"""Tool calls: from an answer's text to its parts, and from functions to a grammar."""
