"""A real API server, and what runs in the pods of operators."""
