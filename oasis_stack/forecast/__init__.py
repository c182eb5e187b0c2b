"""Google's forecast of capacity, and the ladder that it is about."""
