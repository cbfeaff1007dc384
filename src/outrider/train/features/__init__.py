"""Hidden rows of training texts, and batches of them."""
