"""The plots of a search: one line per trial, across the fields that were varied (parallel coordinates) and by epoch."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.markers import TICKLEFT, TICKRIGHT
from matplotlib.ticker import LogLocator, MaxNLocator

from workloads.reporting.curve import FAINT, INK, TRAIN, blank, over_epochs, png
from workloads.reporting.progress import counted
from workloads.tune.ledger import Outcome, Status, best
from workloads.tune.planning import Search

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


def scale(values: Sequence[Any], logarithmic: bool) -> tuple[list[float], list[tuple[float, str]]]:
    """Heights of values on an axis of their own, from 0 at the bottom to 1 at the top, and its labels with theirs.

    Args:
        values: at least one.
        logarithmic: show numbers by their logarithm.
    """
    number: Callable[[Any], float] = math.log10 if logarithmic else float
    label = "{:.3g}".format
    if not all(isinstance(value, int | float) and not isinstance(value, bool) for value in values):
        values = [str(value) for value in values]
        number, label = sorted(set(values)).index, lambda word: word[-24:]
    marks = sorted(set(values))
    if len(marks) > 5 and not isinstance(marks[0], str):
        locator = LogLocator(numticks=6, subs=(1.0, 2.0, 5.0)) if logarithmic else MaxNLocator(6)
        marks = [mark for mark in locator.tick_values(marks[0], marks[-1]) if marks[0] <= mark <= marks[-1]]
    numbers = [number(value) for value in values]
    low, high = min(numbers), max(numbers)

    def height(value: float) -> float:
        return (value - low) / (high - low) if high > low else 0.5

    return [height(value) for value in numbers], _apart([(height(number(mark)), label(mark)) for mark in marks])


def draw(search: Search, ranked: Sequence[Outcome]) -> bytes:
    """The plot as the bytes of a PNG.

    Args:
        search: whose varied fields have an axis each.
        ranked: its trials, best first; those without an end, or with one that is not finite, are not drawn.
    """
    metric, varied = search.plan.metric, search.space.varied
    shown = [one for one in ranked if one.counts and math.isfinite(one.last[metric])]
    columns = [[one.trial.changes[field] for one in shown] for field in varied]
    columns.append([one.last[metric] for one in shown])
    names = [*varied, metric]
    scales = [scale(column, name in search.space.logarithmic) for name, column in zip(names, columns, strict=True)]
    figure = blank(max(7.0, 2.1 * len(names)), 5)
    axes = figure.add_subplot()
    colors = colormaps[COLORS if search.plan.sign > 0 else f"{COLORS}_r"]
    for place in reversed(range(len(shown))):
        heights = [column[place] for column, _ in scales]
        _line(axes, heights, colors(heights[-1]), shown[place].status == "stopped", place == 0)
    _axes(axes, [ticks for _, ticks in scales], names)
    # The last axis is the key to the colours.
    edge = len(names) - 1
    ramp = np.linspace(0, 1, 256)[:, None]
    axes.imshow(ramp, cmap=colors, origin="lower", extent=(edge, edge + RAMP, 0, 1), aspect="auto", zorder=1)
    axes.set_xlim(-0.4, edge + 0.4)
    axes.set_ylim(-0.07, 1.07)
    stopped = sum(one.status == "stopped" for one in shown)
    said = counted(len(shown), "trial") + (f", {stopped} of them stopped early (dashed)" if stopped else "")
    _entitle(axes, f"{search.name}: {said}, the best in orange", pad=24)
    return png(figure)


def curves(search: Search, ranked: Sequence[Outcome]) -> bytes:
    """The metric at each epoch's end, as the bytes of a PNG; of every trial, so also of those that were stopped early.

    Args:
        search: whose metric it is.
        ranked: its trials, best first; those without an epoch are not drawn.
    """
    metric, figure = search.plan.metric, blank(8, 4.6)
    axes = figure.add_subplot()
    # As above, the best is drawn last. What is not finite is a gap.
    for outcome in (one for one in reversed(ranked) if one.epochs):
        is_best = outcome is best(ranked)
        name, line, mark = STYLES[outcome.status]
        axes.plot(
            [epoch["epoch"] for epoch in outcome.epochs],
            [epoch[metric] if math.isfinite(epoch[metric]) else math.nan for epoch in outcome.epochs],
            color=BEST if is_best else TRAIN if outcome.status == "complete" else FAINT,
            linewidth=2.2 if is_best else 1.2,
            linestyle=line,
            marker=mark,
            markevery=[-1],
            markersize=4,
            label=f"{outcome.trial.name}, the best" if is_best else name,
        )
    _entitle(axes, f"{search.name}: {metric} by epoch")
    over_epochs(axes)
    lines = {str(line.get_label()): line for line in reversed(axes.get_lines())}
    axes.legend(lines.values(), lines.keys(), frameon=False, fontsize=9, labelcolor=INK)
    return png(figure)


def _entitle(axes: Axes, title: str, pad: float | None = None) -> None:
    axes.set_title(title, loc="left", color=INK, fontsize=11, fontweight="bold", pad=pad)


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


def _axes(axes: Axes, labels: Sequence[Sequence[tuple[float, str]]], names: Sequence[str]) -> None:
    axes.set_yticks([])
    axes.set_xticks(range(len(names)), names, color=INK, fontsize=10, fontweight="bold")
    axes.xaxis.tick_top()
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    for place, ticks in enumerate(labels):
        axes.vlines(place, 0, 1, color=FAINT, linewidth=1.2, zorder=1)
        first, last = place == 0, place == len(labels) - 1
        for height, label in ticks:
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


def _apart(ticks: Sequence[tuple[float, str]]) -> list[tuple[float, str]]:
    """Those that do not lie on one another; the outer ones stay."""
    kept: list[tuple[float, str]] = []
    for tick in sorted(ticks, key=lambda tick: -abs(tick[0] - 0.5)):
        if all(abs(tick[0] - height) >= LABEL_HEIGHT for height, _ in kept):
            kept.append(tick)
    return sorted(kept)
