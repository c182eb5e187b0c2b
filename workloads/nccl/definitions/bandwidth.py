"""The arithmetic of collective benchmarks: message sizes, algorithm and bus bandwidth, and nccl-tests' table.

Definitions are those of NVIDIA's nccl-tests, doc/PERFORMANCE.md: size S is bytes of a rank's larger buffer, algbw =
S / t, busbw = algbw x factor, which is comparable with a link's speed whatever the number of ranks. GB is 10^9 bytes.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from workloads.errors import UsageError

_UNITS = {"": 1, "K": 1024, "M": 1024**2, "G": 1024**3}
_SIZE = re.compile(r"(\d+)([KMG]?)", re.IGNORECASE)

LARGEST_SIZE = 16 * 1024**3
"""16 GiB, by which the bandwidth in every published table has levelled off."""

GPU_SIZES = "1K:16G:2"
"""Sizes on GPUs, as far as their memory allows."""

CPU_SIZES = "1K:64M:2"
"""Sizes on CPUs, where gloo takes a second or more for each larger size."""


@dataclass(frozen=True, kw_only=True)
class Percentiles:
    """Calls timed one by one, each from a barrier to its end on the slowest rank: the jitter; `Timing` has the mean.

    Percentiles are computed as in nccl-tests (src/util.cu, `computeIterStats`).
    """

    calls: int
    """Number of calls; p99 of fewer than 100 is the maximum."""
    p50: float
    """In seconds, like the other percentiles."""
    p95: float
    p99: float
    max: float
    slowest_rank: int
    """The rank that ended last most often."""

    @classmethod
    def of(cls, rank_calls: Sequence[Sequence[float]]) -> Percentiles:
        """From the seconds of each call on each rank: one sequence per rank, all of one length, at least 1."""
        calls = list(zip(*rank_calls, strict=True))
        slowest = sorted(map(max, calls))
        last = Counter(max(range(len(call)), key=call.__getitem__) for call in calls)

        def at(percent: int) -> float:
            return slowest[min(len(slowest), -(-len(slowest) * percent // 100)) - 1]

        return cls(
            calls=len(slowest),
            p50=slowest[len(slowest) // 2],
            p95=at(95),
            p99=at(99),
            max=slowest[-1],
            slowest_rank=last.most_common(1)[0][0],
        )


@dataclass(frozen=True, kw_only=True)
class Timing:
    """One size, in place or not, over all ranks."""

    seconds: float
    """Mean time of one call back to back, on the slowest rank; with `--average` the mean over the ranks."""
    iterations: int
    """Calls timed back to back."""
    slowest_rank: int
    """The rank with the longest time."""
    wrong: int | None
    """Elements that differed from the exact result, over all ranks, before and after timing together; None if nothing
    can be checked (`N/A` in nccl-tests): all_to_all and sendrecv in place."""
    rank_seconds: tuple[float, ...]
    """Mean time of one call on each rank; values far apart mean that ranks run differently."""
    blocking: Percentiles | None
    """Calls one by one; None if not requested."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """One line of the table."""

    op: str
    """The collective's name."""
    size: int
    """Bytes of a rank's larger buffer, sent or received: for all_gather what it receives."""
    count: int
    """Elements that the call is given: for all_gather what one rank sends."""
    dtype: str
    """Element type in nccl-tests' words: float, half, bfloat16, int32."""
    redop: str
    """Reduction, `sum`; `none` where the collective reduces nothing."""
    root: int
    """Root rank; -1 where the collective has none."""
    factor: float
    """busbw / algbw."""
    out_of_place: Timing
    in_place: Timing

    def algbw(self, timing: Timing) -> float:
        """Algorithm bandwidth in GB/s."""
        return self.size / timing.seconds / 1e9

    def busbw(self, timing: Timing) -> float:
        """Bus bandwidth in GB/s."""
        return self.algbw(timing) * self.factor

    @property
    def wrong(self) -> int:
        """Wrong elements, in and out of place together."""
        return (self.out_of_place.wrong or 0) + (self.in_place.wrong or 0)


def all_reduce_factor(ranks: int) -> float:
    """busbw / algbw of all-reduce: each element crosses a link 2(n-1) times in n ranks; 0 for a single rank."""
    return 2 * (ranks - 1) / ranks


def exchange_factor(ranks: int) -> float:
    """busbw / algbw of all-gather, reduce-scatter and all-to-all: a rank's own n-th of the data crosses no link."""
    return (ranks - 1) / ranks


def one_way_factor(ranks: int) -> float:
    """busbw / algbw of broadcast and send/recv: the data cross each link once. Of a single rank, too: as nccl-tests."""
    return 1.0


def parse_size(text: str) -> int:
    """Bytes of `64M` and the like; K, M and G are powers of 1024, as in nccl-tests.

    Raises:
        UsageError: not a size, or not between 1 byte and 16 GiB.
    """
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise UsageError(f"{text!r} is not a size.", "Write bytes or a whole number with K, M or G, as in 64M.")
    size = int(match[1]) * _UNITS[match[2].upper()]
    if not 1 <= size <= LARGEST_SIZE:
        raise UsageError(f"{text!r} is {size} bytes.", f"A size is between 1 byte and {format_size(LARGEST_SIZE)}.")
    return size


def parse_sizes(text: str) -> tuple[int, ...]:
    """Sizes of `FIRST:LAST:FACTOR` (`1K:64M:2`), of `FIRST:LAST` (factor 2), or a single one.

    Raises:
        UsageError: a part is not a size, the last is below the first, or the factor is below 2.
    """
    parts = text.split(":")
    if len(parts) > 3:
        raise UsageError(f"{text!r} has {len(parts)} parts.", "Write FIRST:LAST:FACTOR, as in 1K:64M:2.")
    first = parse_size(parts[0])
    last = parse_size(parts[1]) if len(parts) > 1 else first
    if last < first:
        raise UsageError(f"{text!r} ends below its start.", "Write the smaller size first, as in 1K:64M:2.")
    if len(parts) == 3 and not (re.fullmatch("[0-9]+", parts[2]) and int(parts[2]) >= 2):
        raise UsageError(f"{parts[2]!r} is not a factor between sizes.", "Write a whole number of at least 2.")
    factor = int(parts[2]) if len(parts) == 3 else 2
    sizes = [first]
    while sizes[-1] * factor <= last:
        sizes.append(sizes[-1] * factor)
    return tuple(sizes)


def format_size(size: int) -> str:
    """`64 MiB`; the largest unit in which it is a whole number."""
    for unit, name in ((1024**3, "GiB"), (1024**2, "MiB"), (1024, "KiB")):
        if size >= unit and size % unit == 0:
            return f"{size // unit} {name}"
    return f"{size} B"


def average_busbw(rows: Sequence[Row]) -> float:
    """Mean bus bandwidth over all sizes, in and out of place alike: nccl-tests' last line. Small sizes pull it down."""
    values = [row.busbw(timing) for row in rows for timing in (row.out_of_place, row.in_place)]
    return sum(values) / len(values) if values else 0.0


def table_header() -> str:
    """The three header lines of nccl-tests' table."""
    names = f"{'time':>7}  {'algbw':>6}  {'busbw':>6}  {'#wrong':>6}"
    units = f"{'(us)':>7}  {'(GB/s)':>6}  {'(GB/s)':>6}  {'':>6}"
    lead = f"{'size':>12}  {'count':>12}  {'type':>8}  {'redop':>6}  {'root':>6}"
    lead_units = f"{'(B)':>12}  {'(elements)':>12}  {'':>8}  {'':>6}  {'':>6}"
    sides = f"{'':>52}           out-of-place                       in-place"
    lines = (sides, f"{lead}  {names}  {names}", f"{lead_units}  {units}  {units}")
    return "\n".join(f"#{line[1:]}".rstrip() for line in lines)


def table_row(row: Row) -> str:
    """One line of nccl-tests' table."""
    lead = f"{row.size:>12}  {row.count:>12}  {row.dtype:>8}  {row.redop:>6}  {row.root:>6}"
    return "  ".join([lead, *(_columns(row, timing) for timing in (row.out_of_place, row.in_place))])


def table_footer(rows: Sequence[Row]) -> str:
    """nccl-tests' two closing lines: the sum of wrong elements, and the average."""
    wrong = sum(row.wrong for row in rows)
    verdict = "OK" if wrong == 0 else "FAILED"
    return f"# Out of bounds values : {wrong} {verdict}\n# Avg bus bandwidth    : {average_busbw(rows):g}"


def jitter(rows: Sequence[Row]) -> str:
    """Jitter of single calls, which a mean hides: percentiles in microseconds, and the rank that is last most often.

    A comment line for each size, in place; empty if calls were not timed alone.
    """
    timed = [(row.size, row.in_place.blocking) for row in rows]
    lines = [
        f"#{size:>11}  {_fitted(alone.p50 * 1e6, 9)}  {_fitted(alone.p95 * 1e6, 9)}  {_fitted(alone.p99 * 1e6, 9)}  "
        f"{_fitted(alone.max * 1e6, 9)}  {alone.slowest_rank:>9}"
        for size, alone in timed
        if alone is not None
    ]
    names = f"#{'one by one':>11}  {'p50 (us)':>9}  {'p95 (us)':>9}  {'p99 (us)':>9}  {'max (us)':>9}  {'last rank':>9}"
    return "\n".join([names, *lines]) if lines else ""


def table(rows: Iterable[Row]) -> str:
    """The whole table."""
    rows = list(rows)
    return "\n".join([table_header(), *map(table_row, rows), table_footer(rows), *filter(None, [jitter(rows)])])


def _columns(row: Row, timing: Timing) -> str:
    time = _fitted(timing.seconds * 1e6, 7)
    wrong = "  N/A" if timing.wrong is None else f"{timing.wrong:>6}"
    return f"{time}  {_fitted(row.algbw(timing), 6)}  {_fitted(row.busbw(timing), 6)}  {wrong}"


def _fitted(value: float, width: int) -> str:
    """As many digits as fit, at most two decimals: nccl-tests' `getFloatStr` (src/util.cu)."""
    for digits in (2, 1, 0):
        if len(text := f"{value:>{width}.{digits}f}") <= width:
            return text
    return f"{value:>{width}.{1 if width >= 7 else 0}e}"
