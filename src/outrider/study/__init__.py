"""What makes a drafter fast: its quality as a language model, its acceptance, its latency; measured, then ranked."""
