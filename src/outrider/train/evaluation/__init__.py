"""How good a head is on texts it was not trained on."""
