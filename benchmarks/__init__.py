"""Commands that measure what docs/figures.md reports, and their latest results, dated."""
