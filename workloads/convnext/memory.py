"""The end of memory, of a GPU's or of the machine's."""

import torch


def exhausted(error: Exception) -> bool:
    """True if the error says that memory has ended; torch has a type for the GPU's alone."""
    return isinstance(error, MemoryError | torch.OutOfMemoryError) or "DefaultCPUAllocator" in str(error)
