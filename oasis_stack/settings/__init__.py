"""A stack file's settings: read, checked, and given as frozen dataclasses."""
