"""Dense decoders on Outrider's own CPU kernels."""
