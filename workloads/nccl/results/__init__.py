"""Measurements: stored, judged, compared, printed and plotted."""
