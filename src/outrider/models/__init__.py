"""Models: their files, and the backends that run them."""
