"""Predictions for more nodes than were measured."""
