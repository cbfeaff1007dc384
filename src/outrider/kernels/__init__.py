"""Numerical kernels; the reference is the specification every faster one is tested against."""
