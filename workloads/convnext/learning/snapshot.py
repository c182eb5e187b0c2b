"""Copies of a training state that later steps do not change, from which checkpoints are written during training."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def copied(state: dict[str, Any], device: torch.device) -> dict[str, Any]:
    """The state with every tensor copied to CPU memory; strides are kept.

    From a GPU the copies go through pinned memory, with one wait for all of them. torch's allocator keeps the pinned
    blocks of a snapshot that is no longer needed for the next one, so that only the first has to pin them.
    """
    whole = _copied(state)
    if device.type == "cuda":
        torch.cuda.current_stream(device).synchronize()
    return whole


def _copied(value: Any) -> Any:
    if isinstance(value, Tensor):
        copy = torch.empty_like(value, device="cpu", pin_memory=value.is_cuda)
        return copy.copy_(value.detach(), non_blocking=value.is_cuda)
    if isinstance(value, dict):
        return {key: _copied(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_copied(inner) for inner in value)
    return value
