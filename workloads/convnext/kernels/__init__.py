"""Our own kernels, each beside torch's, which remains the fallback."""
