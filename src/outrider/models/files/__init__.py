"""Model files, for all backends: weights, configurations, tokenizers and chat templates."""
