"""What a project lacks for a stack, asked before anything is made, and what it keeps of one, before that is destroyed:
one module per subject, all of them read-only."""
