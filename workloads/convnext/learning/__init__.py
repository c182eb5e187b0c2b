"""The model and its training loop: torch without Ray."""
