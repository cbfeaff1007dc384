"""Speculative decoding that changes nothing about the output."""
