"""Plot of bandwidth and time over message size: a line per stage, many stages of one kind as their median and range.

PNG and SVG show the same. The SVG's bytes follow from the figures alone: a changed picture means changed figures.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import cycle
from statistics import median
from typing import TYPE_CHECKING

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator, PercentFormatter

from workloads.nccl.definitions.bandwidth import Row, Timing, format_size
from workloads.nccl.results import thresholds
from workloads.reporting.curve import FAINT, INK, TRAIN, VALIDATION
from workloads.reporting.progress import duration

if TYPE_CHECKING:
    from workloads.nccl.results.measured import Measured
    from workloads.nccl.results.thresholds import Reference

GRID = "#e4e7eb"
COLORS = ("#1f77b4", "#d9480f", "#2f9e44", "#9c36b5", "#e8a100", "#0b7285", "#c2255c", "#5c940d")
"""The first four can be told apart without seeing red or green."""

MOST_LINES = 3
"""Stages of one kind that have a line each; of more, their median and range are drawn."""

LEFT_TICKS, RIGHT_TICKS = 9, 6
"""Sizes that have room beneath each panel."""


@dataclass(frozen=True, kw_only=True)
class Series:
    """The curves of one colour: one stage, or all stages of one kind."""

    label: str
    stages: tuple[tuple[Row, ...], ...]
    """Rows of each stage."""

    def sizes(self) -> list[int]:
        """Sizes that all of its stages have, rising."""
        return sorted(set.intersection(*({row.size for row in rows} for rows in self.stages)))

    def timings(self, size: int, in_place: bool) -> list[tuple[Row, Timing]]:
        """Of one size, one per stage; without those that were not measured."""
        rows = [row for rows in self.stages for row in rows if row.size == size]
        return [(row, row.in_place if in_place else row.out_of_place) for row in rows]


def draw(op: str, where: str, measured: Sequence[Measured]) -> dict[str, bytes]:
    """The pictures by their format, `png` and `svg`.

    Args:
        op: the collective's name.
        where: what it was measured on, for the title.
        measured: its stages; at least one, each with at least one row.
    """
    figure = Figure(figsize=(11, 5.4), dpi=130, layout="constrained")
    figure.suptitle(f"{op}: {where}", color=INK, fontsize=12, fontweight="bold", x=0.01, ha="left")
    left, right = figure.subplots(1, 2, width_ratios=(3, 2))
    drawn = lines(measured)
    # A single rank moves nothing over a bus, so its bus bandwidth is 0 and its own speed is what there is to show.
    alone = all(row.factor == 0 for one in measured for row in one.rows)
    for axes, ticks in ((left, LEFT_TICKS), (right, RIGHT_TICKS)):
        sizes = sorted({size for line in drawn for size in line.sizes()})
        # Counted from the largest, whose bandwidth is the headline.
        shown = sizes[::-1][:: -(-len(sizes) // ticks)][::-1]
        frame(axes, shown, map(format_size, shown), "message size", 8.5)
    for color, line in zip(cycle(COLORS), drawn, strict=False):
        _curves(left, line, color, Row.algbw if alone else Row.busbw)
        _curves(right, line, color, lambda row, timing: timing.seconds)
    left.set_title(f"{'algorithm' if alone else 'bus'} bandwidth, GB/s", loc="left", color=INK, fontsize=10)
    right.set_title("time of a call", loc="left", color=INK, fontsize=10)
    left.set_ylim(bottom=0)
    right.set_yscale("log")
    low, high = right.get_ylim()
    right.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if high < 1000 * low else (1.0,)))
    right.yaxis.set_major_formatter(FuncFormatter(duration))
    right.yaxis.set_minor_locator(NullLocator())
    _references(left, sorted({line for one in measured for line in thresholds.references(one.conditions)}))
    _legend(figure, left, alone=len(measured) == 1)
    return saved(figure)


def saved(figure: Figure) -> dict[str, bytes]:
    """A figure as PNG and SVG, the SVG without date or random names in it."""
    pictures = {}
    with rc_context({"svg.hashsalt": "oasis"}):
        for form in ("png", "svg"):
            file = io.BytesIO()
            figure.savefig(file, format=form, metadata={"Date": None} if form == "svg" else None)
            pictures[form] = file.getvalue()
    return pictures


def lines(measured: Sequence[Measured]) -> list[Series]:
    """The stages in the order in which they came, many of one kind together where the first of them stands.

    Stages are of one kind that have as many nodes and the same forced algorithm.
    """
    kinds: dict[tuple[int, str], list[Measured]] = {}
    for one in measured:
        kinds.setdefault((len(one.stage.nodes), one.stage.algorithm), []).append(one)
    drawn = []
    for (nodes, algorithm), stages in kinds.items():
        if len(stages) <= MOST_LINES:
            drawn += [Series(label=one.stage.name, stages=(one.rows,)) for one in stages]
            continue
        each = "a node alone" if nodes == 1 else f"{nodes} nodes"
        forced = f", {algorithm.lower()}" if algorithm else ""
        drawn.append(
            Series(label=f"{each}{forced}: median and range of {len(stages)}", stages=tuple(one.rows for one in stages))
        )
    return drawn


def draw_efficiency(
    points: Sequence[tuple[int, float, float | None, bool]], title: str, conditions: str
) -> dict[str, bytes]:
    """Efficiency over nodes, the prediction as a line, what was trained as points: `png` and `svg`.

    Args:
        points: nodes, predicted efficiency, measured efficiency or None, whether the prediction is extrapolated; at
            least one, nodes rising.
        title: what is trained.
        conditions: what one GPU does, for the second line.
    """
    figure = Figure(figsize=(8, 4.6), dpi=130, layout="constrained")
    figure.suptitle(f"{title}: efficiency over nodes", color=INK, fontsize=12, fontweight="bold", x=0.01, ha="left")
    axes = figure.add_subplot()
    axes.set_title(conditions, loc="left", color=INK, fontsize=9)
    nodes = [count for count, *_ in points]
    axes.plot(nodes, [predicted for _, predicted, *_ in points], "-o", color=TRAIN, linewidth=2, label="predicted")
    if beyond := [(count, predicted) for count, predicted, _, extrapolated in points if extrapolated]:
        axes.plot(*zip(*beyond, strict=True), "o", color=TRAIN, markerfacecolor="white", label="extrapolated")
    trained = [(count, measured) for count, _, measured, _ in points if measured is not None]
    if trained:
        axes.plot(*zip(*trained, strict=True), "D", color=VALIDATION, markersize=7, label="measured")
    for count, predicted, *_ in points:
        axes.annotate(
            f"{predicted:.1%}",
            (count, predicted),
            (0, -15),
            textcoords="offset points",
            ha="center",
            color=TRAIN,
            fontsize=8.5,
        )
    frame(axes, nodes, [f"{count:,}" for count in nodes], "nodes", 9)
    lowest = min(value for point in points for value in point[1:3] if value is not None)
    highest = max(value for point in points for value in point[1:3] if value is not None)
    # A line at 99 % that fills the picture would look like a loss.
    axes.set_ylim(min(0.9, lowest - 0.02), max(1.0, highest) + 0.01)
    axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    axes.margins(x=0.06)
    axes.legend(frameon=False, fontsize=9, labelcolor=INK, loc="lower left")
    return saved(figure)


def frame(axes: Axes, ticks: Sequence[int], labels: Iterable[str], below: str, size: float) -> None:
    """Axes without a box, with these places along the bottom.

    Args:
        axes: to be drawn on.
        ticks: places, rising.
        labels: of those places.
        below: what they are.
        size: of the labels, in points.
    """
    axes.set_xscale("log", base=2)
    axes.set_xticks(ticks, list(labels))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xlabel(below, color=INK)
    axes.grid(axis="y", color=GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.spines["bottom"].set_color(FAINT)
    axes.tick_params(colors=INK, length=0, labelsize=size)


def _curves(axes: Axes, line: Series, color: str, value: Callable[[Row, Timing], float]) -> None:
    """Out of place solid with full marks, in place dashed with empty ones; only the first is in the legend."""
    sizes = line.sizes()
    for in_place in (False, True):
        found = [[value(row, timing) for row, timing in line.timings(size, in_place)] for size in sizes]
        axes.plot(
            sizes,
            [median(values) for values in found],
            "--o" if in_place else "-o",
            color=color,
            linewidth=1.2 if in_place else 1.8,
            markersize=5.5 if in_place else 3.5,
            markerfacecolor="none" if in_place else color,
            label="_" if in_place else line.label,
        )
        if len(line.stages) > 1 and not in_place:
            lowest, highest = ([end(values) for values in found] for end in (min, max))
            axes.fill_between(sizes, lowest, highest, color=color, alpha=0.15, lw=0)


def _references(axes: Axes, drawn: Sequence[Reference]) -> None:
    """Horizontal lines, named at their left end, where the curves are still low.

    Args:
        axes: with a linear scale from 0.
        drawn: rising.
    """
    if not drawn:
        return
    heights = [reference.gigabytes_per_second for reference in drawn]
    top = max(axes.get_ylim()[1], 1.08 * heights[-1])
    axes.set_ylim(top=top)
    for reference, height, following in zip(drawn, heights, [*heights[1:], 2 * top], strict=True):
        axes.axhline(height, color=FAINT, linewidth=1, linestyle=(0, (5, 3)), zorder=1)
        axes.annotate(
            reference.label,
            (0, height),
            (4, 1),
            xycoords=("axes fraction", "data"),
            textcoords="offset points",
            color=INK,
            fontsize=8,
            # Beneath its line where the next line is so close above that the name would stand in it.
            va="top" if following - height < 0.05 * top else "bottom",
        )


def _legend(figure: Figure, axes: Axes, alone: bool) -> None:
    """The colours and line styles; of one stage alone there is no colour to tell from another."""
    handles, labels, color = *axes.get_legend_handles_labels(), FAINT
    if alone:
        handles, labels, color = [], [], COLORS[0]
    (solid,) = axes.plot([], [], "-o", color=color, markersize=3.5)
    (dashed,) = axes.plot([], [], "--o", color=color, markersize=5.5, markerfacecolor="none", linewidth=1.2)
    figure.legend(
        [*handles, solid, dashed],
        [*labels, "out of place", "in place"],
        loc="outside lower left",
        ncols=6,
        frameon=False,
        fontsize=9,
        labelcolor=INK,
    )
