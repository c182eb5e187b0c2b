"""Commands that measure what the README reports, and their last results, dated."""
