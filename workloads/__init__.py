"""The platform's workloads: a trainer, a benchmark, and the client that submits them. Never imports the program."""
