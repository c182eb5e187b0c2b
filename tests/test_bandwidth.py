"""The arithmetic and the checks of the benchmark, against nccl-tests' definitions and by injected faults."""

import json
import re
from dataclasses import replace

import pytest
import torch

from workloads.errors import UsageError
from workloads.nccl import bandwidth, collectives, plot, report
from workloads.nccl.bandwidth import Row, Timing
from workloads.nccl.report import Conditions


def row(size: int = 1 << 30, seconds: float = 0.005, ranks: int = 16, wrong: int = 0) -> Row:
    timing = Timing(seconds=seconds, iterations=20, slowest_rank=3, wrong=wrong, rank_seconds=(seconds,) * ranks)
    factor = bandwidth.all_reduce_factor(ranks)
    return Row(
        size=size,
        count=size // 4,
        dtype="float",
        redop="sum",
        root=-1,
        factor=factor,
        out_of_place=timing,
        in_place=timing,
    )


CONDITIONS = Conditions(
    op="all_reduce",
    backend="nccl",
    nodes=2,
    ranks=16,
    hosts=("a", "b"),
    started="2026-01-01T00:00:00+00:00",
    machine_type="a3-ultragpu-8g",
    accelerator="NVIDIA H200",
    image="",
    versions={"torch": "2.15.0"},
    variables={},
)


def test_bus_bandwidth_is_algorithm_bandwidth_times_two_n_minus_one_over_n() -> None:
    assert [bandwidth.all_reduce_factor(ranks) for ranks in (1, 2, 4, 8, 16)] == [0.0, 1.0, 1.5, 1.75, 1.875]
    measured = row(size=8_000_000_000, seconds=0.04, ranks=8)
    assert measured.algbw(measured.in_place) == pytest.approx(200)
    assert measured.busbw(measured.in_place) == pytest.approx(350)


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
    "text", ["", "1KiB", "1.5M", "64MB", "-1", "0", "32G", "2K:1K", "1K:2K:1", "1K:2K:x", "1:2:3:4"]
)
def test_sizes_in_wrong_units_or_out_of_bounds_are_refused_with_what_to_write(text: str) -> None:
    with pytest.raises(UsageError) as refusal:
        bandwidth.parse_sizes(text)
    assert refusal.value.remedy


def test_the_table_has_nccl_tests_columns_line_by_line() -> None:
    # Header and number formats of NVIDIA/nccl-tests, src/common.cu and src/util.cu.
    header = (
        "#                                                              out-of-place                       in-place\n"
        "#       size         count      type   redop    root     time   algbw   busbw  #wrong     time   algbw   busbw"
        "  #wrong\n"
        "#        (B)    (elements)                               (us)  (GB/s)  (GB/s)             (us)  (GB/s)  (GB/s)"
    )
    assert bandwidth.table_header() == header
    line = bandwidth.table_row(row(size=1 << 30, seconds=0.0051234, ranks=8))
    columns = "5123.4  209.58  366.76       0"
    assert line == f"  1073741824     268435456     float     sum      -1   {columns}   {columns}"
    assert "  13.66  " in bandwidth.table_row(row(size=8, seconds=13.66e-6))
    assert "  45641  " in bandwidth.table_row(row(seconds=0.045641))
    assert bandwidth.table_footer([row(wrong=2)]).splitlines()[0] == "# Out of bounds values : 4 FAILED"


@pytest.mark.parametrize("dtype", list(collectives.DTYPES))
@pytest.mark.parametrize("ranks", [1, 2, 3, 8, 16, 64])
def test_the_sum_over_ranks_is_exactly_what_is_expected_in_every_type_and_order(dtype: str, ranks: int) -> None:
    kind = collectives.DTYPES[dtype]
    period = collectives.period(kind, ranks)
    buffers = [torch.empty(3 * period + 1, dtype=kind) for _ in range(ranks)]
    for rank, buffer in enumerate(buffers):
        collectives.fill(buffer, rank, period)
    expected = collectives.ALL_REDUCE.expected(period, ranks)
    for order in (buffers, buffers[::-1]):
        total = torch.zeros_like(buffers[0])
        for buffer in order:
            total += buffer
        assert collectives.count_wrong(total, expected) == 0


@pytest.mark.parametrize("dtype", list(collectives.DTYPES))
def test_a_missing_rank_a_shifted_block_a_nan_and_one_changed_element_are_all_counted(dtype: str) -> None:
    kind = collectives.DTYPES[dtype]
    ranks, count = 4, 5000
    period = collectives.period(kind, ranks)
    expected = collectives.ALL_REDUCE.expected(period, ranks)

    def total(of: range) -> torch.Tensor:
        result = torch.zeros(count, dtype=kind)
        for rank in of:
            buffer = torch.empty(count, dtype=kind)
            collectives.fill(buffer, rank, period)
            result += buffer
        return result

    assert collectives.count_wrong(total(range(ranks)), expected) == 0
    assert collectives.count_wrong(total(range(ranks - 1)), expected) > count * 0.9
    assert collectives.count_wrong(total(range(ranks)).roll(1024), expected) > count * 0.5
    one = total(range(ranks))
    one[4321] += 1
    assert collectives.count_wrong(one, expected) == 1
    if kind.is_floating_point:
        one[7] = float("nan")
        assert collectives.count_wrong(one, expected) == 2


def test_a_type_that_cannot_hold_the_sum_exactly_is_refused() -> None:
    with pytest.raises(UsageError, match="not exact"):
        collectives.period(torch.bfloat16, 1024)


def test_the_json_lines_carry_a_schema_the_conditions_and_the_table_s_numbers() -> None:
    lines = [json.loads(line) for line in report.json_lines(CONDITIONS, [row()]).splitlines()]
    assert lines[0]["schema"] == "oasis.collective/1"
    assert (lines[0]["kind"], lines[0]["backend"], lines[0]["ranks"]) == ("environment", "nccl", 16)
    assert lines[1]["in_place"]["busbw"] == pytest.approx(row().busbw(row().in_place))
    assert len(lines[1]["in_place"]["rank_time_us"]) == 16


def test_a_limit_is_drawn_only_where_the_machine_s_gpus_were_measured() -> None:
    several, one = report.reference(CONDITIONS), report.reference(replace(CONDITIONS, nodes=1))
    assert several is not None and several.gigabytes_per_second == 400
    assert one is not None and one.gigabytes_per_second == 480
    assert report.reference(replace(CONDITIONS, backend="gloo")) is None
    assert report.reference(replace(CONDITIONS, machine_type="somebody-elses-machine")) is None
    assert report.reference(replace(CONDITIONS, machine_type="")) is None


@pytest.mark.parametrize("ranks", [1, 16])
def test_the_plot_is_a_png_for_one_rank_too(ranks: int) -> None:
    rows = [row(size=1 << power, ranks=ranks) for power in range(10, 31)]
    picture = plot.draw("all_reduce", "title", rows, report.reference(CONDITIONS))
    assert re.match(rb"\x89PNG\r\n", picture)
