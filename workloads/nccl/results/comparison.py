"""Two sets of results side by side: what they have in common, and by how much the second is slower. Pure.

Small messages and large ones are judged apart, as latency and bandwidth fail apart; single sizes are never judged, as
of hundreds some always stand out.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from workloads.errors import UsageError
from workloads.nccl.definitions.bandwidth import Row, Timing
from workloads.nccl.results import noise
from workloads.nccl.results.measured import Conditions
from workloads.nccl.results.noise import Change, Point
from workloads.nccl.results.records import Results
from workloads.reporting.progress import counted

LATENCY_BYTES = 64 * 1024
"""Up to here a call's time is its latency: on published tables it hardly grows."""

BANDWIDTH_SHARE = 16
"""A size is a large one from this fraction of the largest on; on published tables bandwidth has levelled out there."""

_95_OF_NORMAL = 1.645

MUST_AGREE = (
    ("backend", "backends"),
    ("accelerator", "accelerators"),
    ("machine_type", "machine types"),
    ("average", "definitions of time (--average)"),
)
"""Fields of the conditions without which times cannot be compared, with their names for people."""


@dataclass(frozen=True, kw_only=True, order=True)
class Key:
    """What is compared with what."""

    op: str
    stage: str
    dtype: str

    def __str__(self) -> str:
        return f"{self.op} ({self.dtype}), {self.stage}"


@dataclass(frozen=True, kw_only=True)
class Run:
    """One stage of one result."""

    source: str
    conditions: Conditions
    algorithm: str
    rows: tuple[Row, ...]
    taken: str
    """The path that NCCL's log showed, with algorithm, protocol and channels; empty where nobody looked."""


@dataclass(frozen=True, kw_only=True)
class Compared:
    """One line of the table."""

    key: Key
    regime: str
    """`latency`, `bandwidth`, or `all sizes` where there are too few to tell them apart."""
    sizes: tuple[int, int]
    """Smallest and largest, in bytes."""
    before: float
    """Median of seconds, or of bytes per second of bus bandwidth, as `unit` says."""
    after: float
    unit: str
    change: Change

    @property
    def words(self) -> str:
        """`slower by 12 % (noise 3 %)`, `no difference beyond noise (3 %)`, `too noisy to judge (noise above 50 %)`."""
        if self.change.hidden:
            return f"too noisy to judge (noise above {math.expm1(noise.JUDGED):.0%})".replace("%", " %")
        allowed = f"{math.expm1(self.change.noise):.1%}".replace("%", " %")
        if not self.change.real:
            return f"no difference beyond noise ({allowed})"
        share = f"{abs(self.change.share):.1%}".replace("%", " %")
        return f"{'slower' if self.change.size > 0 else 'faster'} by {share} (noise {allowed})"


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Two sets of results, compared."""

    lines: tuple[Compared, ...]
    differences: tuple[str, ...]
    """In versions, image and variables: what may be the reason."""
    left_out: tuple[str, ...]
    """What only one side has, and why stages of a run are missing."""


def compare(before: Sequence[Results], after: Sequence[Results]) -> Comparison:
    """Compare every collective and stage that both sides have.

    Raises:
        UsageError: they have none in common, or were measured on what cannot be compared.
    """
    old, new = _runs(before), _runs(after)
    common = [key for key in old if key in new]
    if not common:
        raise UsageError(
            f"The two have no collective and stage in common: {_names(old)} against {_names(new)}.",
            "Compare results of the same collective, type and number of nodes.",
        )
    for key in common:
        _check(key, [*old[key], *new[key]])
    groups = [(key, *group) for key in common for group in _regimes(old[key], new[key])]
    if not groups:
        raise UsageError(
            f"The two have no size in common: {_names(old)} against {_names(new)}.",
            "Measure both with the same --sizes.",
        )
    lines = [_compared(key, regime, sizes, old[key], new[key], len(groups)) for key, regime, sizes in groups]
    left_out = [f"{key} only in {side}" for side, keys in (("A", old), ("B", new)) for key in keys if key not in common]
    left_out += [
        f"{one.source} stopped before its end: {one.remarks.stopped}"
        for one in (*before, *after)
        if one.remarks.stopped
    ]
    return Comparison(
        lines=tuple(lines),
        differences=(
            *_differences(old[common[0]][0].conditions, new[common[0]][0].conditions),
            *(line for key in common for line in _other_path(key, old[key][0], new[key][0])),
        ),
        left_out=tuple(left_out),
    )


def _runs(side: Sequence[Results]) -> dict[Key, list[Run]]:
    runs: dict[Key, list[Run]] = defaultdict(list)
    for results in side:
        for one in results.measured:
            key = Key(op=one.conditions.op, stage=one.stage.name, dtype=one.rows[0].dtype)
            runs[key].append(
                Run(
                    source=results.source,
                    conditions=one.conditions,
                    algorithm=one.stage.algorithm,
                    rows=one.rows,
                    taken=_taken(results.remarks.verdicts.get(one.stage.name, {})),
                )
            )
    return runs


def _check(key: Key, runs: Sequence[Run]) -> None:
    """Refuse what was measured on different things, or is no measurement: a wrong result may be a fast one."""
    for run in runs:
        if wrong := sum(row.wrong for row in run.rows):
            raise UsageError(
                f"{key}: {wrong} elements of the results were wrong in {run.source}; its times say nothing.",
                "Compare results whose #wrong columns are 0.",
            )
    first = runs[0]
    for other in runs[1:]:
        for field, name in MUST_AGREE:
            _same(key, name, first, other, getattr(first.conditions, field), getattr(other.conditions, field))
        _same(key, "topologies", first, other, _topology(first.conditions), _topology(other.conditions))
        _same(key, "forced algorithms", first, other, first.algorithm, other.algorithm)


def _same(key: Key, name: str, first: Run, other: Run, mine: object, theirs: object) -> None:
    if mine != theirs:
        raise UsageError(
            f"{key}: the two have different {name}, {mine or 'none'} in {first.source} and {theirs or 'none'} in "
            f"{other.source}; their times say nothing about each other.",
            "Compare results of like machines, measured alike.",
        )


def _topology(conditions: Conditions) -> str:
    each = conditions.ranks // conditions.nodes
    return f"{counted(conditions.nodes, 'node')} with {counted(each, 'rank')} each"


def _regimes(old: Sequence[Run], new: Sequence[Run]) -> Iterator[tuple[str, tuple[int, ...]]]:
    """The sizes that all have, as small ones and large ones; as one group where there are few."""
    sizes = sorted(set.intersection(*({row.size for row in run.rows} for run in (*old, *new))))
    small = tuple(size for size in sizes if size <= LATENCY_BYTES)
    large = tuple(size for size in sizes if size > LATENCY_BYTES and size * BANDWIDTH_SHARE >= sizes[-1])
    if not large or not small:
        if sizes:
            yield "all sizes", tuple(sizes)
        return
    yield "latency", small
    yield "bandwidth", large


def _compared(
    key: Key, regime: str, sizes: tuple[int, ...], old: Sequence[Run], new: Sequence[Run], comparisons: int
) -> Compared:
    change = noise.change(_points(old, sizes), _points(new, sizes), comparisons)
    # What a reader knows the regime by: of small messages the time, of large ones the bandwidth.
    bandwidth = regime == "bandwidth" and old[0].rows[0].factor > 0
    values = [_typical(side, sizes, bandwidth) for side in (old, new)]
    return Compared(
        key=key,
        regime=regime,
        sizes=(sizes[0], sizes[-1]),
        before=values[0],
        after=values[1],
        unit="GB/s" if bandwidth else "µs",
        change=change,
    )


def _typical(side: Sequence[Run], sizes: tuple[int, ...], bandwidth: bool) -> float:
    """Median over sizes, places and runs: bus bandwidth in GB/s, or time in microseconds."""
    values = [
        row.busbw(timing) if bandwidth else timing.seconds * 1e6
        for run in side
        for row in run.rows
        if row.size in sizes
        for timing in (row.out_of_place, row.in_place)
    ]
    return median(values)


def _points(side: Sequence[Run], sizes: tuple[int, ...]) -> list[Point]:
    by_size = [{row.size: row for row in run.rows} for run in side]
    return [_point([place(rows[size]) for rows in by_size]) for size in sizes for place in (_out_of_place, _in_place)]


def _out_of_place(row: Row) -> Timing:
    return row.out_of_place


def _in_place(row: Row) -> Timing:
    return row.in_place


def _point(timings: Sequence[Timing]) -> Point:
    return Point(
        times=tuple(math.log(timing.seconds) for timing in timings), spread=max(_spread(timing) for timing in timings)
    )


def _spread(timing: Timing) -> float:
    """Standard deviation of the mean, as calls one by one have it: from the upper half, which jitter makes."""
    alone = timing.blocking
    if alone is None:
        return 0.0
    return (alone.p95 / alone.p50 - 1) / _95_OF_NORMAL / math.sqrt(alone.calls)


def _differences(old: Conditions, new: Conditions) -> Iterator[str]:
    for name in sorted({*old.versions, *new.versions}):
        if old.versions.get(name) != new.versions.get(name):
            yield f"{name}: {old.versions.get(name, 'none')} in A, {new.versions.get(name, 'none')} in B"
    if old.image != new.image:
        yield f"image: {old.image or 'none'} in A, {new.image or 'none'} in B"
    for name in sorted({*old.variables, *new.variables}):
        if old.variables.get(name) != new.variables.get(name):
            yield f"{name}={old.variables.get(name, '')} in A, {name}={new.variables.get(name, '')} in B"


def _taken(verdict: Mapping[str, Any]) -> str:
    parts = (verdict.get(name) for name in ("path", "algorithm", "protocol", "channels"))
    return " ".join(str(part) for part in parts if part)


def _other_path(key: Key, old: Run, new: Run) -> Iterator[str]:
    if old.taken and new.taken and old.taken != new.taken:
        yield f"{key}: {old.taken} in A, {new.taken} in B"


def _names(runs: dict[Key, list[Run]]) -> str:
    return "; ".join(map(str, runs))
