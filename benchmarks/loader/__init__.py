"""The loader beside others, on pictures made for it."""
