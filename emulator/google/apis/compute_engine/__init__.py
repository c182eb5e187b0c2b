"""Parts of the emulated Compute Engine that hold no resources."""
