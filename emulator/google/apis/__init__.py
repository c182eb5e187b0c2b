"""Google's APIs, one module each."""
