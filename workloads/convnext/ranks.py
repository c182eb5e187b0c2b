"""Communication between the ranks of a run."""

from __future__ import annotations

from typing import TypeVar

import torch.distributed as dist

Told = TypeVar("Told")


def gathered(mine: Told) -> list[Told]:
    """The values of all ranks, rank 0 first; with a single rank, only its own. Collective."""
    every = [mine]
    if dist.is_initialized() and dist.get_world_size() > 1:
        every = [mine] * dist.get_world_size()
        dist.all_gather_object(every, mine)
    return every
