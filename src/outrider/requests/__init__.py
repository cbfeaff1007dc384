"""A request, its turn in a round, and where its output ends."""
