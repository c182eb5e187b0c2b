"""What others have published of their measurements."""
