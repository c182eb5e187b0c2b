"""HTTP servers of the emulated Google Cloud."""
