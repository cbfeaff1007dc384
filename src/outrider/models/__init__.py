"""Models: loading them, and the backends that run them."""
