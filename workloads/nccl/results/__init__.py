"""Measurements kept, judged, compared, printed and drawn."""
