"""The collectives against nccl-tests' own definitions, and their check against results that are made wrong."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
import torch
from torch import Tensor

from tests.support import gloo
from workloads.nccl import command
from workloads.nccl.definitions.collectives import COLLECTIVES, Counts, Seat
from workloads.nccl.definitions.data_pattern import DTYPES, NEVER, Data, Piece
from workloads.nccl.ranks.rank import Sample

# Written from NVIDIA/nccl-tests a0b82b2: `<Op>GetCollByteCount` and `<Op>GetBw` in src/*.cu, the columns as `TimeTest`
# in src/common.cu prints them (size is the larger of both buffers, count what the call is given). Of 1 MiB of float and
# of 3,000 bytes of bfloat16; the factor is busBw / algBw.
WHOLE = dict.fromkeys((2, 3, 8, 16), ((1048576, 262144), (3000, 1500)))
PARTS = {
    2: ((1048576, 131072), (2976, 744)),
    3: ((1048560, 87380), (2976, 496)),
    8: ((1048576, 32768), (2944, 184)),
    16: ((1048576, 16384), (2816, 88)),
}
FACTORS = {
    "all_reduce": {2: 1.0, 3: 4 / 3, 8: 1.75, 16: 1.875},
    **{key: {2: 0.5, 3: 2 / 3, 8: 0.875, 16: 0.9375} for key in ("all_gather", "reduce_scatter", "all_to_all")},
    **dict.fromkeys(("broadcast", "sendrecv"), dict.fromkeys((2, 3, 8, 16), 1.0)),
}
WORDS = {
    "all_reduce": ("sum", -1, WHOLE),
    "all_gather": ("none", -1, PARTS),
    "reduce_scatter": ("sum", -1, PARTS),
    "broadcast": ("none", 0, WHOLE),
    "all_to_all": ("none", -1, PARTS),
    "sendrecv": ("sum", -1, WHOLE),
}
"""redop, root and counts as nccl-tests prints them."""


@pytest.mark.parametrize("ranks", [2, 3, 8, 16])
@pytest.mark.parametrize("op", list(WORDS))
def test_sizes_counts_columns_and_factors_are_nccl_tests(op: str, ranks: int) -> None:
    collective = COLLECTIVES[op]
    redop, root, counts = WORDS[op]
    assert (collective.redop, collective.root) == (redop, root)
    assert collective.factor(ranks) == pytest.approx(FACTORS[op][ranks], rel=1e-12)
    for (size, count), dtype, asked in zip(counts[ranks], ("float", "bfloat16"), (1 << 20, 3000), strict=True):
        found = gloo.plan(op, dtype).counts(asked, ranks)
        larger = max(found.sent, found.received) * DTYPES[dtype].itemsize
        assert (larger, found.parameter) == (size, count)


def test_buffers_in_place_lie_where_nccl_tests_has_them() -> None:
    # sendInplaceOffset and recvInplaceOffset of src/*.cu, for rank 2 of 4 and 8 elements of each.
    seat, counts = Seat(rank=2, ranks=4, stride=1), Counts(sent=0, received=0, parameter=8)
    where = {
        op: (collective.source_in_place(seat, counts), collective.target_in_place(seat, counts))
        for op, collective in COLLECTIVES.items()
    }
    assert where == {**dict.fromkeys(WORDS, (0, 0)), "all_gather": (16, 0), "reduce_scatter": (0, 16)}
    # "We don't support in-place" (src/alltoall.cu, src/sendrecv.cu): timed, and N/A instead of #wrong.
    assert [op for op, collective in COLLECTIVES.items() if not collective.in_place] == ["all_to_all", "sendrecv"]


def test_sendrecv_is_nccl_tests_ring_on_one_node_and_goes_by_rail_between_nodes() -> None:
    ring = [Seat(rank=rank, ranks=4, stride=1) for rank in range(4)]
    assert [(seat.receiver, seat.sender) for seat in ring] == [(1, 3), (2, 0), (3, 1), (0, 2)]
    rails = [Seat(rank=rank, ranks=6, stride=2) for rank in range(6)]  # three nodes of two
    assert [seat.receiver for seat in rails] == [2, 3, 4, 5, 0, 1]
    assert all(seat.receiver % 2 == seat.rank % 2 == seat.sender % 2 for seat in rails)


@pytest.mark.parametrize("dtype", list(DTYPES))
@pytest.mark.parametrize("ranks", [1, 2, 3, 8, 16, 64, 72, 136, 300])
def test_the_sum_over_ranks_is_exactly_what_is_expected_in_every_type_and_order(dtype: str, ranks: int) -> None:
    kind = DTYPES[dtype]
    data = Data.of(True, kind, ranks)
    buffers = [torch.empty(3 * data.period * data.turns + 1, dtype=kind) for _ in range(ranks)]
    for rank, buffer in enumerate(buffers):
        data.fill(buffer, rank)
    expected = [Piece(senders=range(ranks), start=0, length=len(buffers[0]))]
    for order in (buffers, buffers[::-1]):
        total = torch.zeros_like(buffers[0])
        for buffer in order:
            total += buffer
        assert data.count_wrong(total, expected) == 0


@pytest.mark.parametrize("dtype", list(DTYPES))
def test_a_missing_rank_a_shifted_block_a_nan_and_one_changed_element_are_all_counted(dtype: str) -> None:
    kind = DTYPES[dtype]
    ranks, count = 4, 5000
    data = Data.of(True, kind, ranks)
    expected = [Piece(senders=range(ranks), start=0, length=count)]

    def total(of: range) -> Tensor:
        result = torch.zeros(count, dtype=kind)
        for rank in of:
            buffer = torch.empty(count, dtype=kind)
            data.fill(buffer, rank)
            result += buffer
        return result

    assert data.count_wrong(total(range(ranks)), expected) == 0
    assert data.count_wrong(total(range(ranks - 1)), expected) > count * 0.9
    assert data.count_wrong(total(range(ranks)).roll(1024), expected) > count * 0.5
    one = total(range(ranks))
    one[4321] += 1
    assert data.count_wrong(one, expected) == 1
    if kind.is_floating_point:
        one[7] = float("nan")
        assert data.count_wrong(one, expected) == 2
    untouched = torch.full((count,), NEVER, dtype=kind)
    assert data.count_wrong(untouched, expected) == count


@pytest.mark.parametrize(("dtype", "ranks"), [("bfloat16", 80), ("half", 176), ("float", 251), ("half", 16)])
def test_sums_over_many_ranks_still_differ_from_place_to_place(dtype: str, ranks: int) -> None:
    data, block = Data.of(True, DTYPES[dtype], ranks), Piece(senders=tuple(range(ranks)), start=0, length=64)
    sums = data._tile(block, torch.empty(64, dtype=DTYPES[dtype]))
    assert len(sums.unique()) > 1


@pytest.mark.parametrize("ranks", [72, 136, 384, 1024])
def test_a_rank_that_is_missing_among_very_many_is_found_though_a_small_type_cannot_sum_them_all(ranks: int) -> None:
    data = Data.of(True, torch.bfloat16, ranks)
    assert data.turns > 1
    length = data.period * data.turns

    def of(*senders: int) -> Tensor:
        block = Piece(senders=senders, start=0, length=length)
        return data._tile(block, torch.empty(1, dtype=torch.bfloat16))[:length]

    assert all(of(rank).any() for rank in range(ranks))  # without it the sum is another one
    without_the_last = [Piece(senders=range(ranks - 1), start=0, length=length)]
    assert data.count_wrong(of(*range(ranks)), without_the_last) == int(of(ranks - 1).count_nonzero())


def test_data_that_are_only_moved_differ_between_all_ranks_of_a_large_cluster() -> None:
    data, buffer = Data.of(False, torch.bfloat16, 2000), torch.empty(16, dtype=torch.bfloat16)
    seen = set()
    for rank in range(2000):
        data.fill(buffer, rank)
        seen.add(tuple(buffer.tolist()))
    assert len(seen) == 2000


RANKS = 3
ELEMENTS = 96  # divided by three ranks into multiples of 16 bytes in every type


@dataclasses.dataclass(frozen=True)
class Answer:
    """What a rank in a process of its own found."""

    wrong: list[int | None]
    timed: Sample
    links: list[tuple[tuple[int, int], float]]
    calls: list[int]
    adapted: list[Sample]
    copied: tuple[Sample, str]


@pytest.fixture(scope="module")
def answers() -> list[Answer]:
    """Of three gloo ranks."""
    return gloo.together(RANKS, _in_a_rank)


def _in_a_rank(seat: Seat) -> Answer:
    timed = gloo.rank(seat, gloo.plan(iterations=7, blocking=True))
    return Answer(
        wrong=_corrupted(seat),
        timed=timed.measure(1 << 16, in_place=True),
        links=timed.links([[(0, 1)], [(0, 2)], [(1, 2)]]),
        calls=_calling(seat),
        adapted=_adapting(seat),
        copied=_copying(seat),
    )


def _corrupted(seat: Seat) -> list[int | None]:
    """In a rank's process: every case's wrong elements; one element of one rank's result is changed after each call."""
    found = []
    for op, dtype, in_place, bad in itertools.product(COLLECTIVES, DTYPES, (False, True), [None, *range(RANKS)]):
        collective = COLLECTIVES[op]

        def run(source: Tensor, target: Tensor, at: Seat, real: Any = collective, bad: int | None = bad) -> None:
            real.run(source, target, at)
            if at.rank == bad:
                target[17] += 1

        plan = dataclasses.replace(
            gloo.plan(op, dtype, iterations=1), collective=dataclasses.replace(collective, run=run)
        )
        participant = gloo.rank(seat, plan)
        found.append(participant.measure(ELEMENTS * DTYPES[dtype].itemsize, in_place).wrong)
    return found


def _calling(seat: Seat) -> list[int]:
    calls: list[int] = []

    def counted(source: Tensor, target: Tensor, at: Seat) -> None:
        COLLECTIVES["all_reduce"].run(source, target, at)
        calls.append(source.numel())

    plan = dataclasses.replace(gloo.plan(), collective=dataclasses.replace(COLLECTIVES["all_reduce"], run=counted))
    participant = gloo.rank(seat, plan)
    for size in (1 << 10, 1 << 20):
        participant.call(size)
    return calls


CALL_SECONDS = {1 << 14: 0.1, 1 << 12: 0.02, 1 << 10: 0.0001}
"""What a call of each size takes; on rank 1 twice as long."""


@contextmanager
def _turned_clock() -> Iterator[SimpleNamespace]:
    """The clock of ranks, which calls alone move."""
    clock = SimpleNamespace(now=0.0)
    with mock.patch("workloads.nccl.ranks.rank.time", SimpleNamespace(perf_counter=lambda: clock.now)):
        yield clock


def _adapting(seat: Seat) -> list[Sample]:
    def timed(source: Tensor, target: Tensor, at: Seat) -> None:
        COLLECTIVES["all_reduce"].run(source, target, at)
        clock.now += CALL_SECONDS[source.nbytes] * (2 if at.rank == 1 else 1)

    plan = dataclasses.replace(
        gloo.plan(iterations=0, blocking=True),
        seconds=1.0,
        collective=dataclasses.replace(COLLECTIVES["all_reduce"], run=timed),
    )
    with _turned_clock() as clock:
        return [gloo.rank(seat, plan).measure(size, in_place=True) for size in CALL_SECONDS]


def _copying(seat: Seat) -> tuple[Sample, str]:
    """A call takes a second, the copy before it an hour; and the order of copies and calls."""
    done = ""

    def copied(source: Tensor, target: Tensor, at: Seat) -> None:
        nonlocal done
        COLLECTIVES["all_reduce"].prepare(source, target, at)
        clock.now, done = clock.now + 3600.0, done + "copy "

    def called(source: Tensor, target: Tensor, at: Seat) -> None:
        nonlocal done
        COLLECTIVES["all_reduce"].run(source, target, at)
        clock.now, done = clock.now + 1.0, done + "call "

    collective = dataclasses.replace(COLLECTIVES["all_reduce"], prepare=copied, run=called)
    with _turned_clock() as clock:
        return gloo.rank(seat, dataclasses.replace(gloo.plan(), collective=collective)).measure(4096, False), done


@pytest.mark.thorough
def test_a_wrong_element_on_any_rank_is_found_in_every_collective_type_and_place(answers: list[Answer]) -> None:
    cases = list(itertools.product(COLLECTIVES, DTYPES, (False, True), [None, *range(RANKS)]))
    assert len(cases) == len(answers[0].wrong) == 6 * 4 * 2 * 4
    for number, (op, dtype, in_place, bad) in enumerate(cases):
        found = [answer.wrong[number] for answer in answers]
        if in_place and not COLLECTIVES[op].in_place:
            assert found == [None] * RANKS
        else:  # once before the timing and once after it, on the one rank and on no other
            assert found == [2 if rank == bad else 0 for rank in range(RANKS)], (op, dtype, in_place, bad)


@pytest.mark.thorough
def test_calls_one_by_one_and_exchanges_between_pairs_are_timed_on_every_rank(answers: list[Answer]) -> None:
    for rank, answer in enumerate(answers):
        timed = answer.timed
        assert len(timed.calls) == timed.iterations == 7 and min(timed.calls) > 0 and timed.wrong == 0
        assert [pair for pair, _ in answer.links] == [pair for pair in ((0, 1), (0, 2), (1, 2)) if rank in pair]
        assert all(seconds > 0 for _, seconds in answer.links)


@pytest.mark.thorough
def test_what_is_not_timed_is_one_call_of_each_size(answers: list[Answer]) -> None:
    assert [answer.calls for answer in answers] == [[1 << 8, 1 << 18]] * RANKS


@pytest.mark.thorough
def test_a_quick_size_is_timed_more_often_and_all_ranks_agree_how_often(answers: list[Answer]) -> None:
    expected = [(20, 10), (25, 13), (2000, 200)]  # by the slowest rank's calls, for a second and for half of one
    assert [[(sample.iterations, len(sample.calls)) for sample in answer.adapted] for answer in answers] == [
        expected
    ] * RANKS


@pytest.mark.thorough
def test_the_copy_before_what_torch_has_in_place_only_is_no_part_of_its_time(answers: list[Answer]) -> None:
    for sample, done in (answer.copied for answer in answers):
        assert (sample.seconds, sample.wrong) == (1.0, 0)
        assert done == "copy call " * done.count("call") and done.count("call") > sample.iterations


def test_every_operation_that_the_command_offers_has_its_record() -> None:
    assert tuple(COLLECTIVES) == command.OPS
    assert tuple(DTYPES) == command.DTYPES
