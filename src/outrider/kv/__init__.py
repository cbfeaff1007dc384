"""Pages of keys and values, the prefix cache, and kinds of layer state."""
