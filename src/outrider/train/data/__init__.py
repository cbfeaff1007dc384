"""Training texts: prompts and the target's answers."""
