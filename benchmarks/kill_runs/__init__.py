"""Training runs that are killed, and what is observed of them."""
