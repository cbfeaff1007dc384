"""The output of a training: progress, summary, curve and records."""
