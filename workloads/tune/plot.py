"""The plots of a search: one line per trial, across the fields that were varied (parallel coordinates) and by epoch."""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.markers import TICKLEFT, TICKRIGHT
from matplotlib.ticker import LogLocator, MaxNLocator

from workloads.reporting.curve import FAINT, INK, TRAIN
from workloads.reporting.progress import counted
from workloads.tune.ledger import Outcome, Plan, Status

COLORS = "viridis"
BEST = "#d9480f"
STYLES: dict[Status, tuple[str, str, str]] = {
    "complete": ("ran to the end", "-", "o"),
    "stopped": ("stopped early", "--", "x"),
    "failed": ("failed", ":", "|"),
    "unfinished": ("unfinished", ":", ">"),
}
"""By a trial's status: what the legend of the curves calls it, its line, and the mark at the line's end."""
RAMP = 0.05
"""Width of the key to the colours, in distances between axes."""
LABEL_HEIGHT = 0.05
"""Of an axis; labels that are nearer to each other than this would lie on one another."""


@dataclass(frozen=True)
class Scale:
    """Positions of a field's values on its axis, from 0 at the bottom to 1 at the top."""

    ticks: tuple[tuple[float, str], ...]
    """Height and label."""
    low: float
    high: float
    logarithmic: bool
    words: tuple[str, ...]
    """Values that are no numbers, from the bottom up; empty for numbers."""

    def height(self, value: Any) -> float:
        """Height of a value."""
        if self.words:
            return _share(self.words.index(str(value)), 0, len(self.words) - 1)
        number = math.log10(value) if self.logarithmic else float(value)
        return _share(number, self.low, self.high)


def scale(values: Sequence[Any], logarithmic: bool) -> Scale:
    """An axis that holds these values.

    Args:
        values: at least one.
        logarithmic: show numbers by their logarithm.
    """
    if not all(isinstance(value, int | float) and not isinstance(value, bool) for value in values):
        words = tuple(sorted({str(value) for value in values}))
        ticks = tuple((_share(place, 0, len(words) - 1), word[-24:]) for place, word in enumerate(words))
        return Scale(_apart(ticks), 0, 1, False, words)
    low, high = min(values), max(values)
    distinct = sorted(set(values))
    if len(distinct) <= 5:
        marks: Sequence[float] = distinct
    else:
        locator = LogLocator(numticks=6, subs=(1.0, 2.0, 5.0)) if logarithmic else MaxNLocator(6)
        marks = [float(mark) for mark in locator.tick_values(low, high) if low <= mark <= high]
    ends = (math.log10(low), math.log10(high)) if logarithmic else (float(low), float(high))
    place = [math.log10(mark) if logarithmic else mark for mark in marks]
    ticks = tuple((_share(at, *ends), f"{mark:.3g}") for at, mark in zip(place, marks, strict=True))
    return Scale(_apart(ticks), *ends, logarithmic, ())


def draw(
    plan: Plan, ranked: Sequence[Outcome], varied: Sequence[str], logarithmic: frozenset[str], title: str
) -> bytes:
    """The plot as the bytes of a PNG.

    Args:
        plan: the search.
        ranked: its trials, best first; those without an epoch are not drawn.
        varied: fields, an axis for each.
        logarithmic: those of them with a logarithmic axis.
        title: name of the search.
    """
    shown = [outcome for outcome in ranked if outcome.epochs and outcome.status in ("complete", "stopped")]
    axes_of = [*varied, plan.metric]
    rows = [[*(outcome.trial.changes[field] for field in varied), outcome.epochs[-1][plan.metric]] for outcome in shown]
    rows = [row for row in rows if math.isfinite(row[-1])]
    scales = [scale([row[place] for row in rows], name in logarithmic) for place, name in enumerate(axes_of)]
    figure = Figure(figsize=(max(7.0, 2.1 * len(axes_of)), 5), dpi=130, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    finished = [outcome for outcome in shown if math.isfinite(outcome.epochs[-1][plan.metric])]
    colors = colormaps[COLORS if plan.sign > 0 else f"{COLORS}_r"]
    for place in reversed(range(len(rows))):
        heights = [one.height(value) for one, value in zip(scales, rows[place], strict=True)]
        _line(axes, heights, colors(heights[-1]), finished[place].status == "stopped", place == 0)
    _axes(axes, scales, axes_of)
    # The last axis is the key to the colours.
    edge = len(axes_of) - 1
    ramp = np.linspace(0, 1, 256)[:, None]
    axes.imshow(ramp, cmap=colors, origin="lower", extent=(edge, edge + RAMP, 0, 1), aspect="auto", zorder=1)
    axes.set_xlim(-0.4, edge + 0.4)
    axes.set_ylim(-0.07, 1.07)
    stopped = sum(outcome.status == "stopped" for outcome in finished)
    said = counted(len(finished), "trial") + (f", {stopped} of them stopped early (dashed)" if stopped else "")
    axes.set_title(
        f"{title}: {said}, the best in orange", loc="left", color=INK, fontsize=11, fontweight="bold", pad=24
    )
    image = io.BytesIO()
    figure.savefig(image, format="png")
    return image.getvalue()


def curves(plan: Plan, ranked: Sequence[Outcome], title: str) -> bytes:
    """The metric at each epoch's end, as the bytes of a PNG; of every trial, so also of those that were stopped early.

    Args:
        plan: the search.
        ranked: its trials, best first; those without an epoch are not drawn.
        title: name of the search.
    """
    figure = Figure(figsize=(8, 4.6), dpi=130, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    shown = [outcome for outcome in ranked if outcome.epochs]
    # As above, the best is drawn last. What is not finite is a gap.
    for place, outcome in reversed(list(enumerate(shown))):
        values = [epoch[plan.metric] for epoch in outcome.epochs]
        best = place == 0 and outcome.status in ("complete", "stopped")
        name, line, mark = STYLES[outcome.status]
        axes.plot(
            [epoch["epoch"] for epoch in outcome.epochs],
            [value if math.isfinite(value) else math.nan for value in values],
            color=BEST if best else TRAIN if outcome.status == "complete" else FAINT,
            linewidth=2.2 if best else 1.2,
            linestyle=line,
            marker=mark,
            markevery=[-1],
            markersize=4,
            label=f"{outcome.trial.name}, the best" if best else name,
        )
    axes.set_title(f"{title}: {plan.metric} by epoch", loc="left", color=INK, fontsize=11, fontweight="bold")
    axes.set_xlabel("epoch", color=INK)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.grid(axis="y", color="#e4e7eb", linewidth=0.8)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.spines["bottom"].set_color(FAINT)
    axes.tick_params(colors=INK, length=0, labelsize=9)
    lines = {str(line.get_label()): line for line in reversed(axes.get_lines())}
    axes.legend(lines.values(), lines.keys(), frameon=False, fontsize=9, labelcolor=INK)
    image = io.BytesIO()
    figure.savefig(image, format="png")
    return image.getvalue()


def _line(axes: Axes, heights: Sequence[float], color: Any, stopped: bool, best: bool) -> None:
    # Smooth between the axes, level at them: where many lines cross an axis at one value, each can still be followed.
    places, curve = [], []
    for start, (here, there) in enumerate(pairwise(heights)):
        part = np.linspace(0, 1, 24)
        places.append(start + part)
        curve.append(here + (there - here) * (3 * part**2 - 2 * part**3))
    axes.plot(
        np.concatenate(places),
        np.concatenate(curve),
        color=BEST if best else color,
        # Broad and beneath the others: the second best often lies on it.
        linewidth=4.5 if best else 1.4,
        alpha=1.0 if best else 0.5 if stopped else 0.85,
        linestyle=(0, (4, 2)) if stopped and not best else "-",
        zorder=2 if best else 3,
        clip_on=False,
    )


def _axes(axes: Axes, scales: Sequence[Scale], names: Sequence[str]) -> None:
    axes.set_yticks([])
    axes.set_xticks(range(len(names)), names, color=INK, fontsize=10, fontweight="bold")
    axes.xaxis.tick_top()
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    for place, one in enumerate(scales):
        axes.vlines(place, 0, 1, color=FAINT, linewidth=1.2, zorder=1)
        first, last = place == 0, place == len(scales) - 1
        for height, label in one.ticks:
            # Where no line is: outside the first and the last axis; at others above or below those that arrive here.
            away = 0 if first or last else 1 if height >= 0.5 else -1
            edge, tick = (place + RAMP, TICKRIGHT) if last else (place, TICKLEFT)
            axes.plot([edge], [height], marker=tick, markersize=4, color=INK, clip_on=False)
            axes.annotate(
                label,
                (edge, height),
                (6 if last else -6, 4 * away),
                textcoords="offset points",
                ha="left" if last else "right",
                va=("center", "bottom", "top")[away],
                color=INK,
                fontsize=8.5,
                zorder=4,
                bbox={"boxstyle": "round,pad=0.15", "facecolor": "white", "edgecolor": "none", "alpha": 0.8},
            )


def _apart(ticks: Sequence[tuple[float, str]]) -> tuple[tuple[float, str], ...]:
    """Those that do not lie on one another; the outer ones stay."""
    kept: list[tuple[float, str]] = []
    for tick in sorted(ticks, key=lambda tick: -abs(tick[0] - 0.5)):
        if all(abs(tick[0] - height) >= LABEL_HEIGHT for height, _ in kept):
            kept.append(tick)
    return tuple(sorted(kept))


def _share(value: float, low: float, high: float) -> float:
    return (value - low) / (high - low) if high > low else 0.5
