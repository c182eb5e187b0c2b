"""A stack's Ray: connection, capacity, sizes and process groups."""
