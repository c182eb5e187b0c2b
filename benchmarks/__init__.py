"""Commands that measure what docs/figures.md reports, and their last results, dated."""
