"""Images: where they are, how they are read, in which order, and how they are altered."""
