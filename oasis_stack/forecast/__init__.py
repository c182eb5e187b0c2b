"""What Google expects of capacity, and the ladder that it speaks for."""
