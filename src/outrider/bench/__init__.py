"""Measure methods against each other on one model: paired, interleaved, with the ceiling beside the result."""
