"""Model files: weights, configurations, tokenizers and chat templates, whichever backend reads them."""
