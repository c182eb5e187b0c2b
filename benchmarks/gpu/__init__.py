"""Training on one GPU: first its parts, then whole steps."""
