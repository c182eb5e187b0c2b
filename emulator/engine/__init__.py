"""Pulumi engine runs, their events, and `pulumi` on the PATH."""
