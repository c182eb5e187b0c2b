"""Checks of what a project lacks for a stack before anything is made, and of what it keeps before a stack is destroyed:
one module per subject, all of them read-only."""
