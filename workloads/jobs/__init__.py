"""Jobs on a stack's Ray: submitted, followed, listed and stopped."""
