"""What a project lacks for a stack, asked before anything is made: one module per subject, all of them read-only."""
