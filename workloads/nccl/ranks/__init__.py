"""The measuring processes: placement, start, measurement, and explanation of failures."""
