"""What runs on the platform: a trainer, a benchmark, and the client that submits them. Never imports the program."""
