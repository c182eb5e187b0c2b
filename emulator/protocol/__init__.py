"""Pulumi's provider protocol on the wire, and the launchers of plugins."""
