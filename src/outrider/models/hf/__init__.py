"""Models run by transformers' own code."""
