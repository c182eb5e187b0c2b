"""Out-of-memory errors, of a GPU or of the machine."""

import torch


def exhausted(error: Exception) -> bool:
    """True if the error means out of memory; torch has an exception type only for the GPU's."""
    return isinstance(error, MemoryError | torch.OutOfMemoryError) or "DefaultCPUAllocator" in str(error)
