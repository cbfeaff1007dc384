"""How each method is trained: one recipe per file, named after the method."""
