"""A real API server, and the processes of the operators' pods."""
