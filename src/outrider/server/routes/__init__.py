"""Routes of the server, one group per file."""
