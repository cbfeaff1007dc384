"""Training texts: prompts, and what the target answers to them."""
