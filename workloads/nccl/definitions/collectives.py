"""The collectives as records: how to run one, how much data it moves, and the expected result on each rank.

Counts, columns and buffers in place are those of NVIDIA's nccl-tests (src/all_reduce.cu and its neighbours).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch.distributed as dist
from torch import Tensor

from workloads.nccl.definitions.bandwidth import all_reduce_factor, exchange_factor, one_way_factor
from workloads.nccl.definitions.data_pattern import Piece

ROOT = 0
"""Root rank of broadcast; nccl-tests' default."""

_ALIGNED_BYTES = 16
"""A rank's part of the data is a multiple of this (nccl-tests, `AllGatherGetCollByteCount`)."""


@dataclass(frozen=True, kw_only=True)
class Seat:
    """A rank's position among the ranks."""

    rank: int
    ranks: int
    stride: int
    """From a rank to the one on the same rail of the next node: the number of ranks per node, or 1 on one node."""

    @property
    def receiver(self) -> int:
        """Rank that `sendrecv` sends to."""
        return (self.rank + self.stride) % self.ranks

    @property
    def sender(self) -> int:
        """Rank that `sendrecv` receives from."""
        return (self.rank - self.stride) % self.ranks


@dataclass(frozen=True, kw_only=True)
class Counts:
    """Elements of one call."""

    sent: int
    """In the buffer that a rank sends from."""
    received: int
    """In the buffer that it receives into."""
    parameter: int
    """Argument of the call: nccl-tests' column `count`."""


@dataclass(frozen=True, kw_only=True)
class Collective:
    """One collective operation of the benchmark."""

    name: str
    redop: str = "none"
    """Reduction; `none` for collectives that only move data. As nccl-tests prints it: `sum` for sendrecv, which has
    none."""
    root: int = -1
    """Root rank; -1 for those without one."""
    factor: Callable[[int], float]
    """busbw / algbw for a number of ranks."""
    counts: Callable[[int, int, int], Counts]
    """Counts for the elements requested, the bytes of an element, and the number of ranks."""
    run: Callable[[Tensor, Tensor, Seat], object]
    """Run it from a source into a target, after `prepare`; in place they are views of one buffer."""
    prepare: Callable[[Tensor, Tensor, Seat], object] = lambda source, target, seat: None
    """Preparation before each call that is not part of it: torch has some collectives in place only."""
    copies: bool = False
    """Whether `prepare` does anything out of place."""
    expected: Callable[[Seat, Counts], list[Piece]]
    """Expected content of a rank's target, from its beginning to its end."""
    reduces: bool = False
    """Whether values are summed, which limits their size."""
    source_in_place: Callable[[Seat, Counts], int] = lambda seat, counts: 0
    """Start of the source in the one buffer, in elements."""
    target_in_place: Callable[[Seat, Counts], int] = lambda seat, counts: 0
    """Start of the target in that buffer."""
    in_place: bool = True
    """Whether a result in place has a meaning; if not, it is timed but not checked, as in nccl-tests."""


def _whole(count: int, size: int, ranks: int) -> Counts:
    return Counts(sent=count, received=count, parameter=count)


def _part(count: int, size: int, ranks: int) -> int:
    return count // ranks & ~(_ALIGNED_BYTES // size - 1)


def _gathered(count: int, size: int, ranks: int) -> Counts:
    part = _part(count, size, ranks)
    return Counts(sent=part, received=part * ranks, parameter=part)


def _scattered(count: int, size: int, ranks: int) -> Counts:
    part = _part(count, size, ranks)
    return Counts(sent=part * ranks, received=part, parameter=part)


def _exchanged(count: int, size: int, ranks: int) -> Counts:
    part = _part(count, size, ranks)
    return Counts(sent=part * ranks, received=part * ranks, parameter=part)


def _copy(source: Tensor, target: Tensor, seat: Seat) -> None:
    if source is not target:
        target.copy_(source)


def _copy_on_root(source: Tensor, target: Tensor, seat: Seat) -> None:
    if seat.rank == ROOT:
        _copy(source, target, seat)


def _send_and_receive(source: Tensor, target: Tensor, seat: Seat) -> None:
    if seat.receiver == seat.rank:
        target.copy_(source)
        return
    exchange(source, target, seat.receiver, seat.sender)


def exchange(source: Tensor, target: Tensor, receiver: int, sender: int) -> None:
    """Send to one rank and receive from one, at the same time."""
    operations = [dist.P2POp(dist.isend, source, receiver), dist.P2POp(dist.irecv, target, sender)]
    for work in dist.batch_isend_irecv(operations):
        work.wait()


def _parts_of_all(seat: Seat, counts: Counts, start: int) -> list[Piece]:
    return [Piece(senders=(sender,), start=start, length=counts.parameter) for sender in range(seat.ranks)]


COLLECTIVES = {
    collective.name: collective
    for collective in (
        Collective(
            name="all_reduce",
            redop="sum",
            factor=all_reduce_factor,
            counts=_whole,
            run=lambda source, target, seat: dist.all_reduce(target),
            prepare=_copy,
            copies=True,
            expected=lambda seat, counts: [Piece(senders=range(seat.ranks), start=0, length=counts.received)],
            reduces=True,
        ),
        Collective(
            name="all_gather",
            factor=exchange_factor,
            counts=_gathered,
            run=lambda source, target, seat: dist.all_gather_into_tensor(target, source),
            expected=lambda seat, counts: _parts_of_all(seat, counts, 0),
            source_in_place=lambda seat, counts: seat.rank * counts.parameter,
        ),
        Collective(
            name="reduce_scatter",
            redop="sum",
            factor=exchange_factor,
            counts=_scattered,
            run=lambda source, target, seat: dist.reduce_scatter_tensor(target, source),
            expected=lambda seat, counts: [
                Piece(senders=range(seat.ranks), start=seat.rank * counts.parameter, length=counts.received)
            ],
            reduces=True,
            target_in_place=lambda seat, counts: seat.rank * counts.parameter,
        ),
        Collective(
            name="broadcast",
            root=ROOT,
            factor=one_way_factor,
            counts=_whole,
            run=lambda source, target, seat: dist.broadcast(target, src=ROOT),
            prepare=_copy_on_root,
            copies=True,
            expected=lambda seat, counts: [Piece(senders=(ROOT,), start=0, length=counts.received)],
        ),
        Collective(
            name="all_to_all",
            factor=exchange_factor,
            counts=_exchanged,
            run=lambda source, target, seat: dist.all_to_all_single(target, source),
            expected=lambda seat, counts: _parts_of_all(seat, counts, seat.rank * counts.parameter),
            in_place=False,
        ),
        Collective(
            name="sendrecv",
            redop="sum",
            factor=one_way_factor,
            counts=_whole,
            run=_send_and_receive,
            expected=lambda seat, counts: [Piece(senders=(seat.sender,), start=0, length=counts.received)],
            in_place=False,
        ),
    )
}
"""By nccl-tests' names, all_to_all in torch's spelling. sendrecv on several nodes goes by rail, a rank sending to the
rank of its own number on the next node; on one node to the next rank, as nccl-tests does everywhere."""
