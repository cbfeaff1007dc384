"""Kernels; ``reference.py`` specifies what the faster ones compute."""
