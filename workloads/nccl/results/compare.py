"""`python -m workloads bench compare A B`: is B slower than A by more than either varies? Needs no torch and no Ray.

The command first, then the comparison, then its arithmetic. Small messages, large ones and those between, DDP's buckets
among them, are judged apart, as each fails alone; single sizes are never judged, as of hundreds some always stand out.
Changes and noise are in logarithms of times, where a change by a percentage is the same at every size.
"""

from __future__ import annotations

import argparse
import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from statistics import NormalDist, mean, median, variance
from typing import Any

from workloads import tables
from workloads.errors import EXIT_OK, UsageError, WorkloadFailedError
from workloads.nccl.definitions.bandwidth import Row, Timing, format_size
from workloads.nccl.results import records
from workloads.nccl.results.measured import Conditions, Measured
from workloads.nccl.results.records import Results
from workloads.reporting.progress import counted

DESCRIPTION = """\
Whether the results B differ from the results A by more than noise, for each collective and stage that both have: by
latency for small messages, by bandwidth for the others. Needs no GPU."""

EPILOG = """\
A and B are each a .jsonl file of results, or a folder of them, on a disk or gs://: the runs bucket has them in
bench/<name>. Several results of one collective on one side are repetitions, which show the noise better.

exit codes:
  0 compared, whatever came out   2 not comparable   6 a file is damaged or cut off
  5 with --fail-on-regression: slower beyond noise, too noisy to judge, or B lacks what A has
"""

QUIETER = (
    "Give several results on each side: run `bench` again with another --results inside the same folder, and name the "
    "folder. More calls (--iterations), more sizes and nothing else on the nodes help, too."
)
"""What makes the noise smaller."""

LATENCY_BYTES = 64 * 1024
"""Up to here a call's time is its latency: on published tables it hardly grows."""

BANDWIDTH_SHARE = 16
"""A size is a large one from this fraction of the largest on; on published tables bandwidth has levelled out there."""

_95_OF_NORMAL = 1.645

RUN_SPREAD = 0.01
"""Standard deviation between whole runs on the same machines, where nothing better is known. The same eight H200 gave
473.1 and 477.5 GB/s at 8 GiB, 480.0 and 482.3 at 16 GiB (stas00/ml-engineering, network/README.md)."""

FALSE_ALARM = 0.01
"""Chance that a comparison of two like results reports any difference at all."""

_JUDGED = math.log(1.5)
"""Noise in which no difference may be read as none: half of a lost NIC's factor of two, as of `suspects.SLOW_RATIO`.
All-reduce at 216 to 231 GB/s where 470 are due (NVIDIA/nccl 2409) is what a comparison must not pass over."""

_MEDIAN_LOSS = math.pi / 2
"""By how much a median's variance is larger than a mean's."""

_PRIOR_RUNS = 4
"""How many runs' worth of belief `RUN_SPREAD` has against the spread of runs that were repeated."""


def add_compare_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `python -m workloads bench compare`."""
    parser.description, parser.epilog = DESCRIPTION, EPILOG
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("before", metavar="A", help="the earlier results")
    parser.add_argument("after", metavar="B", help="the later ones")
    parser.add_argument(
        "--fail-on-regression",
        action="store_true",
        help="exit with 5 where B is slower beyond noise, noise hides it, or B lacks what A has",
    )


def run_compare(args: argparse.Namespace) -> int:
    """Print the comparison; returns the exit code.

    Raises:
        UsageError: a place has no results, or the two cannot be compared.
        DataIntegrityError: a file is damaged or cut off.
        WorkloadFailedError: B is slower beyond noise or may be, for all that it shows, and that was to be a failure.
    """
    found = compare(records.load(args.before), records.load(args.after))
    slower = [one for one in found.lines if one.change.real and one.change.size > 0]
    _show(found)
    if slower and args.fail_on_regression:
        worst = max(slower, key=lambda one: one.change.size)
        raise WorkloadFailedError(
            f"{args.after} is slower than {args.before} beyond noise in {len(slower)} of {len(found.lines)} "
            f"comparisons, most in {worst.key} ({worst.regime}): {worst.words}.",
            f"Look at what differs above. {QUIETER}",
        )
    hidden = [one for one in found.lines if one.change.hidden]
    if hidden and args.fail_on_regression:
        raise WorkloadFailedError(
            f"{len(hidden)} of {len(found.lines)} comparisons of the two are too noisy to judge.",
            QUIETER,
        )
    if found.lacking and args.fail_on_regression:
        raise WorkloadFailedError(
            f"Whether {args.after} is slower is not known for all that {args.before} has: {'; '.join(found.lacking)}.",
            "Measure again, with the same nodes, --stages and --sizes.",
        )
    return EXIT_OK


@dataclass(frozen=True, kw_only=True, order=True)
class StageKey:
    """Identity of a stage in a comparison."""

    op: str
    stage: str
    dtype: str

    def __str__(self) -> str:
        return f"{self.op} ({self.dtype}), {self.stage}"


@dataclass(frozen=True, kw_only=True)
class Compared:
    """One line of the table."""

    key: StageKey
    regime: str
    """`latency`, `middle`, `bandwidth`, or `all sizes` where there are too few to tell them apart."""
    sizes: tuple[int, int]
    """Smallest and largest, in bytes."""
    before: float
    """Median of seconds, or of bytes per second of bus bandwidth, as `unit` says."""
    after: float
    unit: str
    change: StageChange

    @property
    def words(self) -> str:
        """`slower by 12 % (noise 3 %)`, `no difference beyond noise (3 %)`, `too noisy to judge (noise above 50 %)`."""
        if self.change.hidden:
            return f"too noisy to judge (noise above {math.expm1(_JUDGED):.0%})".replace("%", " %")
        allowed = f"{math.expm1(self.change.noise):.1%}".replace("%", " %")
        if not self.change.real:
            return f"no difference beyond noise ({allowed})"
        share = f"{abs(self.change.share):.1%}".replace("%", " %")
        return f"{'slower' if self.change.size > 0 else 'faster'} by {share} (noise {allowed})"


@dataclass(frozen=True, kw_only=True)
class StageChange:
    """Extra time of the second side, as a difference of logarithms: 0.1 is 10.5 % longer."""

    size: float
    noise: float
    """What two like results may differ by."""

    @property
    def share(self) -> float:
        """The change as a share of the first side's time: 0.12 is 12 % longer."""
        return math.expm1(self.size)

    @property
    def real(self) -> bool:
        """True if it is more than noise."""
        return abs(self.size) > self.noise

    @property
    def hidden(self) -> bool:
        """True if the noise is so wide that a broken part would not show in it, either."""
        return not self.real and self.noise > _JUDGED


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Two sets of results, compared."""

    lines: tuple[Compared, ...]
    differences: tuple[str, ...]
    """In versions, image and variables: what may be the reason."""
    lacking: tuple[str, ...]
    """What the second side lacks of the first, and why it stopped before its end."""
    left_out: tuple[str, ...]
    """The same of the first side."""


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
    return Comparison(
        lines=tuple(lines),
        differences=(
            *_differences(old[common[0]][0].conditions, new[common[0]][0].conditions),
            *(line for key in common for line in _other_path(key, old[key][0], new[key][0])),
        ),
        lacking=(*_only_in("A", old, new), *_stopped(after)),
        left_out=(*_only_in("B", new, old), *_stopped(before)),
    )


@dataclass(frozen=True, kw_only=True)
class _StageResult:
    """One stage of one result."""

    source: str
    measured: Measured
    taken: str
    """The path that NCCL's log showed, with algorithm, protocol and channels; empty where nobody looked."""

    @property
    def conditions(self) -> Conditions:
        return self.measured.conditions

    @property
    def rows(self) -> tuple[Row, ...]:
        return self.measured.rows


def _runs(side: Sequence[Results]) -> dict[StageKey, list[_StageResult]]:
    runs: dict[StageKey, list[_StageResult]] = defaultdict(list)
    for results in side:
        for one in results.measured:
            key = StageKey(op=one.conditions.op, stage=one.stage.name, dtype=one.rows[0].dtype)
            taken = _taken(results.verdicts.get(one.stage.name, {}))
            runs[key].append(_StageResult(source=results.source, measured=one, taken=taken))
    return runs


def _taken(verdict: Mapping[str, Any]) -> str:
    parts = (verdict.get(name) for name in ("path", "algorithm", "protocol", "channels"))
    return " ".join(str(part) for part in parts if part)


def _check(key: StageKey, runs: Sequence[_StageResult]) -> None:
    """Refuse measurements of different things, and wrong results, which may be fast ones."""
    for run in runs:
        if wrong := sum(row.wrong for row in run.rows):
            raise UsageError(
                f"{key}: {wrong} elements of the results were wrong in {run.source}; its times say nothing.",
                "Compare results whose #wrong columns are 0.",
            )
    first, *others = runs
    for other in others:
        mine, theirs = _comparable(first.measured), _comparable(other.measured)
        for name, value in mine.items():
            if value != theirs[name]:
                raise UsageError(
                    f"{key}: the two have different {name}, {value or 'none'} in {first.source} and "
                    f"{theirs[name] or 'none'} in {other.source}; their times say nothing about each other.",
                    "Compare results of like machines, measured alike.",
                )


def _comparable(measured: Measured) -> dict[str, object]:
    """Conditions that must be alike for times to be compared, by their names for people."""
    conditions = measured.conditions
    ranks = counted(conditions.ranks // conditions.nodes, "rank")
    return {
        "backends": conditions.backend,
        "accelerators": conditions.accelerator,
        "machine types": conditions.machine_type,
        "definitions of time (--average)": conditions.average,
        "topologies": f"{counted(conditions.nodes, 'node')} with {ranks} each",
        "forced algorithms": measured.stage.algorithm,
    }


def _regimes(old: Sequence[_StageResult], new: Sequence[_StageResult]) -> Iterator[tuple[str, tuple[int, ...]]]:
    """The sizes that all have, as small ones, large ones and those between; as one group where there are few."""
    sizes = sorted(set.intersection(*({row.size for row in run.rows} for run in (*old, *new))))
    small = tuple(size for size in sizes if size <= LATENCY_BYTES)
    large = tuple(size for size in sizes if size > LATENCY_BYTES and size * BANDWIDTH_SHARE >= sizes[-1])
    if not large or not small:
        if sizes:
            yield "all sizes", tuple(sizes)
        return
    yield "latency", small
    if middle := tuple(size for size in sizes if small[-1] < size < large[0]):
        yield "middle", middle
    yield "bandwidth", large


def _only_in(
    name: str, mine: Mapping[StageKey, Sequence[_StageResult]], others: Mapping[StageKey, Sequence[_StageResult]]
) -> Iterator[str]:
    """Stages that only this side has, and sizes of those that both have."""
    for key, runs in mine.items():
        if key not in others:
            yield f"{key} only in {name}"
        elif alone := _sizes(runs) - _sizes(others[key]):
            yield f"{key}: {', '.join(map(format_size, sorted(alone)))} only in {name}"


def _sizes(runs: Sequence[_StageResult]) -> set[int]:
    return {row.size for run in runs for row in run.rows}


def _stopped(side: Sequence[Results]) -> list[str]:
    return [f"{one.source} stopped before its end: {one.stopped}" for one in side if one.stopped]


def _compared(
    key: StageKey,
    regime: str,
    sizes: tuple[int, ...],
    old: Sequence[_StageResult],
    new: Sequence[_StageResult],
    comparisons: int,
) -> Compared:
    change = _change(_points(old, sizes), _points(new, sizes), comparisons)
    # What a reader knows the regime by: of small messages the time, of large ones the bandwidth.
    bandwidth = regime in ("middle", "bandwidth") and old[0].rows[0].factor > 0
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


def _typical(side: Sequence[_StageResult], sizes: tuple[int, ...], bandwidth: bool) -> float:
    """Median over sizes, places and runs: bus bandwidth in GB/s, or time in microseconds."""
    values = [
        row.busbw(timing) if bandwidth else timing.seconds * 1e6
        for run in side
        for row in run.rows
        if row.size in sizes
        for timing in (row.out_of_place, row.in_place)
    ]
    return median(values)


@dataclass(frozen=True, kw_only=True)
class _Point:
    """One size in one place, as one side has it."""

    times: tuple[float, ...]
    """Logarithm of the seconds in each of the side's runs."""
    spread: float
    """Standard deviation of a run's time that its own calls show; 0 where they were not timed one by one."""


def _points(side: Sequence[_StageResult], sizes: tuple[int, ...]) -> list[_Point]:
    by_size = [{row.size: row for row in run.rows} for run in side]
    places = (attrgetter("out_of_place"), attrgetter("in_place"))
    return [_point([place(rows[size]) for rows in by_size]) for size in sizes for place in places]


def _point(timings: Sequence[Timing]) -> _Point:
    return _Point(
        times=tuple(math.log(timing.seconds) for timing in timings), spread=max(_spread(timing) for timing in timings)
    )


def _spread(timing: Timing) -> float:
    """Standard deviation of the mean, as calls one by one have it: from the upper half, which jitter makes."""
    alone = timing.blocking
    if alone is None:
        return 0.0
    return (alone.p95 / alone.p50 - 1) / _95_OF_NORMAL / math.sqrt(alone.calls)


def _change(before: Sequence[_Point], after: Sequence[_Point], comparisons: int) -> StageChange:
    """The typical change over points of one kind, and what of it may be noise.

    Args:
        before: one side's points, two of each size.
        after: the other's, in the same order.
        comparisons: how many like this are made together; more of them must each be surer.
    """
    ratios = [mean(new.times) - mean(old.times) for old, new in zip(before, after, strict=True)]
    shown = variance(ratios)
    # Rows that happen to agree are not surer than their own calls.
    own = sum(mean(one.spread**2 / len(one.times) for one in side) for side in (before, after))
    rows = max(shown, own) * _MEDIAN_LOSS / len(ratios)
    runs = sum(_run_variance(side) for side in (before, after))
    certainty = NormalDist().inv_cdf(1 - FALSE_ALARM / 2 / comparisons)
    noise = math.hypot(_students(certainty, len(ratios) - 1) * math.sqrt(rows), certainty * math.sqrt(runs))
    return StageChange(size=median(ratios), noise=noise)


def _students(certainty: float, freedom: int) -> float:
    """Student's quantile from the normal one, for a deviation that is itself only estimated from a few values.

    The first terms of its expansion (Abramowitz and Stegun, 26.7.5), within 4 % from 9 degrees of freedom on. Of fewer
    it is too small, which a comparison of one size lives on: its two places are one degree, and with the exact quantile
    noise of 1 % hides a loss of 25 % in every draw, with this one in a third of them.
    """
    z = certainty
    return z + (z**3 + z) / (4 * freedom) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)


def _run_variance(side: Sequence[_Point]) -> float:
    """Variance of the mean of a side's runs: of whole runs, each of which moves all its points together."""
    runs = len(side[0].times)
    levels = [mean(point.times[run] for point in side) for run in range(runs)]
    deviations = sum((level - mean(levels)) ** 2 for level in levels)
    return (_PRIOR_RUNS * RUN_SPREAD**2 + deviations) / (_PRIOR_RUNS + runs - 1) / runs


def _differences(old: Conditions, new: Conditions) -> Iterator[str]:
    for name in sorted({*old.versions, *new.versions}):
        if old.versions.get(name) != new.versions.get(name):
            yield f"{name}: {old.versions.get(name, 'none')} in A, {new.versions.get(name, 'none')} in B"
    if old.image != new.image:
        yield f"image: {old.image or 'none'} in A, {new.image or 'none'} in B"
    if old.own_calls != new.own_calls:
        yield f"all_reduce and broadcast out of place: {old.out_of_place()} in A, {new.out_of_place()} in B"
    for name in sorted({*old.variables, *new.variables}):
        if old.variables.get(name) != new.variables.get(name):
            yield f"{name}={old.variables.get(name, '')} in A, {name}={new.variables.get(name, '')} in B"


def _other_path(key: StageKey, old: _StageResult, new: _StageResult) -> Iterator[str]:
    if old.taken and new.taken and old.taken != new.taken:
        yield f"{key}: {old.taken} in A, {new.taken} in B"


def _names(runs: dict[StageKey, list[_StageResult]]) -> str:
    return "; ".join(map(str, runs))


def _show(found: Comparison) -> None:
    """Print the table, and beneath it what else there is to know."""
    table = tables.plain()
    for heading in ("collective", "stage", "sizes", "", "A", "B", "B against A"):
        table.add_column(heading, justify="right" if heading in ("A", "B") else "left", no_wrap=True)
    for one in found.lines:
        style = "yellow" if one.change.hidden else ""
        if one.change.real:
            style = "red" if one.change.size > 0 else "green"
        sizes = " to ".join(dict.fromkeys(format_size(size) for size in one.sizes))
        values = (f"{value:.4g} {one.unit}" for value in (one.before, one.after))
        table.add_row(
            f"{one.key.op} {one.key.dtype}", one.key.stage, sizes, one.regime, *values, one.words, style=style
        )
    tables.show(table)
    quieter = [f"too noisy to judge: {QUIETER}"] if any(one.change.hidden for one in found.lines) else []
    for line in (*quieter, *found.differences, *found.lacking, *found.left_out):
        print(f"# {line}")
