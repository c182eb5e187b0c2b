"""Efficiency over nodes as a picture: the prediction as a line, what was trained as points on it or beside it."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator, PercentFormatter

from workloads.nccl.results.plot import GRID, saved
from workloads.reporting.curve import FAINT, INK, TRAIN, VALIDATION


def draw(points: Sequence[tuple[int, float, float | None, bool]], title: str, conditions: str) -> dict[str, bytes]:
    """The pictures by their format, `png` and `svg`.

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
    axes.set_xscale("log", base=2)
    axes.set_xticks(nodes, [f"{count:,}" for count in nodes])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xlabel("nodes", color=INK)
    lowest = min(value for point in points for value in point[1:3] if value is not None)
    highest = max(value for point in points for value in point[1:3] if value is not None)
    # A line at 99 % that fills the picture would look like a loss.
    axes.set_ylim(min(0.9, lowest - 0.02), max(1.0, highest) + 0.01)
    axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    axes.grid(axis="y", color=GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.spines["bottom"].set_color(FAINT)
    axes.tick_params(colors=INK, length=0, labelsize=9)
    axes.margins(x=0.06)
    axes.legend(frameon=False, fontsize=9, labelcolor=INK, loc="lower left")
    return saved(figure)
