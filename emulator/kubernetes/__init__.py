"""A real API server, and Pulumi's `kubernetes` provider on it."""
