"""Compare methods on one model: paired and interleaved runs, with the limit that memory bandwidth sets."""
