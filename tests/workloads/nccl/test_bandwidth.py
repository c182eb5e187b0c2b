"""The arithmetic of the benchmark, against nccl-tests' definitions."""

from dataclasses import replace

import pytest

from tests.support import bench_results, gloo
from workloads.errors import UsageError
from workloads.nccl.definitions import bandwidth
from workloads.nccl.definitions.bandwidth import Percentiles, Row
from workloads.nccl.ranks.rank import Sample, timing


def row(size: int = 1 << 30, seconds: float = 0.005, ranks: int = 16, wrong: int = 0) -> Row:
    """Of one node's ranks, the same out of place and in it."""
    one = bench_results.timing(seconds, ranks, blocking=False, wrong=wrong)
    return bench_results.row(bench_results.conditions(1, gpus=ranks), size, one, one)


@pytest.mark.parametrize(
    ("text", "sizes"),
    [
        ("1K:8K:2", (1024, 2048, 4096, 8192)),
        ("1K:64M:8", (1 << 10, 1 << 13, 1 << 16, 1 << 19, 1 << 22, 1 << 25)),
        ("8:32", (8, 16, 32)),
        ("16g", (16 << 30,)),
        ("1K:3K", (1024, 2048)),
    ],
)
def test_sizes_are_read_in_nccl_tests_units(text: str, sizes: tuple[int, ...]) -> None:
    assert bandwidth.parse_sizes(text) == sizes


@pytest.mark.parametrize(
    "text", ["", "1KiB", "1.5M", "64MB", "-1", "0", "32G", "2K:1K", "1K:2K:1", "1K:2K:x", "1K:2K:²", "1:2:3:4"]
)
def test_sizes_in_wrong_units_or_out_of_bounds_are_refused_with_what_to_write(text: str) -> None:
    with pytest.raises(UsageError) as refusal:
        bandwidth.parse_sizes(text)
    assert refusal.value.remedy


def test_the_table_has_nccl_tests_columns_line_by_line() -> None:
    # NVIDIA/nccl-tests, src/util.cu at a0b82b2: `writeResultHeader`, `writeBenchmarkLineBody`.
    header = (
        "#                                                              out-of-place                       in-place\n"
        "#       size         count      type   redop    root     time   algbw   busbw  #wrong     time   algbw   busbw"
        "  #wrong\n"
        "#        (B)    (elements)                               (us)  (GB/s)  (GB/s)             (us)  (GB/s)  (GB/s)"
    )
    assert bandwidth.table_header() == header
    line = bandwidth.table_row(row(size=1 << 30, seconds=0.0051234, ranks=8))
    columns = "5123.40  209.58  366.76       0"
    assert line == f"  1073741824     268435456     float     sum      -1  {columns}  {columns}"
    assert "    13.66    " in bandwidth.table_row(row(size=8, seconds=13.66e-6))
    assert "  45641.0   " in bandwidth.table_row(row(seconds=0.045641))
    # `getFloatStr`: fewer digits where they do not fit, then an exponent.
    assert "  3.0e+07    0.04  " in bandwidth.table_row(row(seconds=30.0))
    assert "  1073.7  2013.3  " in bandwidth.table_row(row(seconds=1e-3))
    assert bandwidth.table_footer([row(wrong=2)]).splitlines()[0] == "# Out of bounds values : 4 FAILED"


def test_what_cannot_be_checked_is_nccl_tests_n_a_and_counts_as_nothing_wrong() -> None:
    # src/util.cu, `writeBenchmarkLineBody`: the words "    N/A" stand for two spaces and #wrong.
    unchecked = replace(row(wrong=1), in_place=replace(row().in_place, wrong=None))
    assert unchecked.wrong == 1
    assert bandwidth.table_row(unchecked).endswith("    N/A")


def test_percentiles_are_nccl_tests_of_the_slowest_rank_of_each_call() -> None:
    # src/util.cu, `computeIterStats` and `percentileIndex`: p50 is value n/2, p95 value (95 n + 99) / 100 - 1, from 0.
    calls = [float(number) for number in range(1, 201)]
    found = Percentiles.of([calls, [0.5] * 200])
    assert (found.calls, found.p50, found.p95, found.p99, found.max) == (200, 101, 190, 198, 200)
    assert found.slowest_rank == 0
    few = Percentiles.of([[1.0, 1.0, 9.0], [2.0, 2.0, 2.0]])
    assert (few.p50, few.p95, few.max, few.slowest_rank) == (2.0, 9.0, 9.0, 1)


def test_a_size_s_time_is_the_slowest_rank_s_or_the_mean_over_the_ranks() -> None:
    samples = [Sample(seconds=seconds, iterations=5, wrong=1, calls=(seconds,)) for seconds in (1.0, 4.0, 1.0)]
    slowest, mean = timing(samples, average=False), timing(samples, average=True)
    assert (slowest.seconds, mean.seconds) == (4.0, 2.0)
    assert slowest.slowest_rank == mean.slowest_rank == 1 and slowest.wrong == 3
    assert slowest.blocking is not None and slowest.blocking.max == 4.0
    unchecked = timing([replace(sample, wrong=None, calls=()) for sample in samples], average=False)
    assert (unchecked.wrong, unchecked.blocking) == (None, None)


def test_sizes_that_do_not_fit_or_cannot_be_divided_are_left_out_or_refused_before_anything_is_measured() -> None:
    plan, sizes = gloo.plan(), [1 << 20, 1 << 30, 8 << 30]
    assert plan.fitting(sizes, 2, 2 << 30, shorten=True) == sizes[:2]
    assert plan.fitting(sizes, 2, 8 << 30, shorten=False) == sizes
    for room, shorten in ((2 << 30, False), (1 << 10, True)):
        with pytest.raises(UsageError, match=r"Two buffers of 8 GiB do not fit"):
            plan.fitting(sizes, 2, room, shorten)
    gather = gloo.plan("all_gather")
    assert gather.fitting([1 << 10, 1 << 20], 128, 1 << 30, shorten=True) == [1 << 20]
    with pytest.raises(UsageError, match=r"1 KiB cannot be divided among 128 ranks for all_gather.*at 2048 or more"):
        gather.fitting([1 << 10, 1 << 20], 128, 1 << 30, shorten=False)


def test_calls_one_by_one_are_shown_below_the_table_with_the_rank_that_is_last_most_often() -> None:
    one = row(ranks=2)
    alone = Percentiles(calls=20, slowest_rank=1, p50=1e-6, p95=2.5e-6, p99=3e-3, max=12.0)
    shown = bandwidth.jitter([replace(one, in_place=replace(one.in_place, blocking=alone)), one])
    assert shown.splitlines()[1].split() == ["#", str(one.size), "1.00", "2.50", "3000.00", "12000000", "1"]
    assert bandwidth.jitter([replace(one, in_place=replace(one.in_place, blocking=None))]) == ""
