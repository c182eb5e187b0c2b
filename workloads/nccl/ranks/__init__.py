"""The processes that measure: placed, started, measured, and explained when they fail."""
