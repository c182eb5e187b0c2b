"""The training curve of a run: as a PNG and as a table for the terminal, from the journal's records alone."""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from itertools import zip_longest
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator, PercentFormatter

from workloads.reporting.history import Record

INK = "#1f2933"
FAINT = "#9aa5b1"
TRAIN = "#5b8def"
VALIDATION = "#d9480f"

TABLE_ROWS = 12

MARKS = {"restarted": (0, (2, 3)), "resized": (0, (1, 2, 4, 2)), "continued": "-"}
"""Line at the epoch where a run went on from a checkpoint, by why."""

MOST_NAMED = 4
"""Epochs that the key of the plot names for each."""

CHART_COLUMNS, CHART_ROWS = 30, 7
"""Characters of a chart in the terminal; each holds two by four dots."""

_BRAILLE = 0x2800
"""First of Unicode's Braille patterns, the one without dots."""
_DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))
"""Bit of each dot in a pattern, by row and column (Unicode 17.0, section 21.1)."""


def epochs_of(records: Sequence[Record]) -> list[Record]:
    """The records that end an epoch."""
    return [record for record in records if record["event"] == "epoch"]


def resumptions(records: Sequence[Record]) -> dict[str, list[Record]]:
    """The records with which a run went on from a checkpoint, by why.

    One after which nothing was trained, as of a run whose last step was done, is left out.
    `restarted` after a failure; `resized` to another number of workers; `continued` by a new command.
    """
    found: dict[str, list[Record]] = {"restarted": [], "resized": [], "continued": []}
    reasons = {record["name"]: record.get("reason") for record in records if record["event"] == "checkpoint"}
    trained = max((record["step"] for record in records if record["event"] in ("step", "epoch")), default=0)
    before = None
    for record in records:
        if record["event"] != "resumed":
            continue
        if record["name"] is not None and record["step"] < trained:
            same = before is None or record.get("attempt") == before.get("attempt")
            resized = reasons.get(record["name"]) == "resize"
            found["continued" if not same else "resized" if resized else "restarted"].append(record)
        before = record
    return {why: those for why, those in found.items() if those}


def blank(width: float, height: float) -> Figure:
    """An empty figure of so many inches, as all of these plots have it."""
    return Figure(figsize=(width, height), dpi=130, layout="constrained")


def png(figure: Figure) -> bytes:
    """A figure as the bytes of a PNG."""
    image = io.BytesIO()
    figure.savefig(image, format="png")
    return image.getvalue()


def over_epochs(axes: Axes) -> None:
    """Dress the axes of a quantity that is drawn by epoch."""
    axes.set_xlabel("epoch", color=INK)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.grid(axis="y", color="#e4e7eb", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.spines["bottom"].set_color(FAINT)
    axes.tick_params(colors=INK, length=0, labelsize=9)


def draw(records: Sequence[Record], title: str) -> bytes:
    """Loss and accuracy over epochs, as the bytes of a PNG; where the run went on from a checkpoint is marked.

    Args:
        records: one run's merged journal.
        title: what was trained on what.
    """
    return png(figure_of(records, title))


def figure_of(records: Sequence[Record], title: str) -> Figure:
    """The figure that `draw` saves."""
    figure = blank(11, 4.6)
    figure.suptitle(title, color=INK, fontsize=12, fontweight="bold", x=0.01, ha="left")
    loss, accuracy = figure.subplots(1, 2)
    steps = [record for record in records if record["event"] == "step"]
    epochs = epochs_of(records)
    _panel(loss, steps, epochs, "loss")
    _panel(accuracy, steps, epochs, "accuracy")
    accuracy.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    accuracy.set_ylim(min(0.5, accuracy.dataLim.y0) - 0.02, 1.01)
    if epochs:
        _mark_last(loss, epochs[-1]["epoch"], epochs[-1]["val/loss"], f"{epochs[-1]['val/loss']:.3f}")
        _mark_last(accuracy, epochs[-1]["epoch"], epochs[-1]["val/accuracy"], f"{epochs[-1]['val/accuracy']:.1%}")
    marked = resumptions(records)
    for axes in (loss, accuracy):
        for why, found in marked.items():
            for record in found:
                axes.axvline(record["epoch"], color=FAINT, linewidth=1, linestyle=MARKS[why], zorder=0)
    _explain(figure, loss, marked)
    return figure


def _panel(axes: Axes, steps: Sequence[Record], epochs: Sequence[Record], quantity: str) -> None:
    axes.set_title(quantity, loc="left", color=INK, fontsize=10)
    over_epochs(axes)
    _line(axes, steps, f"train/{quantity}", "training, augmented: each step", color=TRAIN, alpha=0.3, linewidth=1)
    _line(axes, epochs, f"train/{quantity}", "training, augmented: each epoch", color=TRAIN, linewidth=1.8)
    _line(axes, epochs, f"val/{quantity}", "validation", color=VALIDATION, linewidth=2.2)
    axes.set_xlim(left=0)
    axes.margins(x=0.08)


def _line(axes: Axes, records: Sequence[Record], name: str, label: str, **look: Any) -> None:
    """A line through the records' values; a point where there is one alone, and nothing where there is none."""
    if records:
        alone = {"marker": "o", "markersize": 5, "linestyle": "none"} if len(records) == 1 else {}
        axes.plot([r["epoch"] for r in records], [r[name] for r in records], label=label, **alone, **look)


def _mark_last(axes: Axes, epoch: float, value: float, label: str) -> None:
    axes.plot([epoch], [value], "o", color=VALIDATION, markersize=5)
    axes.annotate(
        label,
        (epoch, value),
        (6, 0),
        textcoords="offset points",
        color=VALIDATION,
        fontsize=9,
        fontweight="bold",
        va="center",
    )


def _explain(figure: Figure, axes: Axes, marked: dict[str, list[Record]]) -> None:
    """One key below the axes, where no line is: a row of what both panels show, and one of the marks."""
    shown = [line for line in axes.get_lines() if not str(line.get_label()).startswith("_")]
    marks = [
        Line2D([], [], color=FAINT, linewidth=1, linestyle=MARKS[why], label=f"{why} at epoch {_epochs(found)}")
        for why, found in marked.items()
    ]
    # A legend is filled column by column.
    lines = [line for column in zip_longest(shown, marks) for line in column if line is not None]
    if lines:
        columns = max(len(shown), len(marks))
        figure.legend(
            handles=lines, frameon=False, fontsize=9, labelcolor=INK, loc="outside lower center", ncols=columns
        )


def _epochs(found: Sequence[Record]) -> str:
    shown = [f"{record['epoch']:.3g}" for record in found[:MOST_NAMED]]
    return ", ".join(shown) + (f" and {len(found) - MOST_NAMED} more" if len(found) > MOST_NAMED else "")


def table(records: Sequence[Record]) -> str:
    """For the terminal: a row per epoch, thinned to a dozen, the best marked; beneath, loss and accuracy as charts."""
    epochs = epochs_of(records)
    if not epochs:
        return "no epoch was finished"
    best = max(epochs, key=lambda record: record["val/accuracy"])
    stride = -(-len(epochs) // TABLE_ROWS)
    shown = [record for number, record in enumerate(reversed(epochs)) if number % stride == 0 or record is best][::-1]
    header = (
        f"{'epoch':>6} {'step':>8} {'train loss':>11} {'train acc':>10} {'val loss':>9} {'val acc':>8} {'images/s':>9}"
    )
    rows = [
        f"{record['epoch']:6.0f} {record['step']:8d} {record['train/loss']:11.4f} {record['train/accuracy']:10.2%} "
        f"{record['val/loss']:9.4f} {record['val/accuracy']:8.2%} {record['train/images_per_second']:9,.0f}"
        f"{'  best' if record is best else ''}"
        for record in shown
    ]
    lines = [header, "-" * len(header), *rows, ""]
    marked = resumptions(records)
    lines += [f"{why} at step {', '.join(str(record['step']) for record in found)}" for why, found in marked.items()]
    lines += [""] if marked else []
    return "\n".join([*lines, *_charts(epochs)])


def _charts(epochs: Sequence[Record]) -> list[str]:
    last = f"{epochs[-1]['epoch']:.0f}"
    charts = []
    for name, form in (("val/loss", "{:.3f}"), ("val/accuracy", "{:.1%}")):
        values = [record[name] for record in epochs]
        drawn = chart(values)
        low, high = _range(values)
        margins = [form.format(high), *[""] * (CHART_ROWS - 2), form.format(low)]
        lines = [f"{margin:>7} |{line}" for margin, line in zip(margins, drawn, strict=True)]
        title = f"{name.replace('val/', 'validation ')} {form.format(values[-1])}"
        charts.append(
            [f"{'':>8} {title:<{CHART_COLUMNS}}", *lines, f"{'':>8} {'1':<{CHART_COLUMNS - len(last)}}{last}"]
        )
    return ["  ".join(pair).rstrip() for pair in zip(*charts, strict=True)]


def _range(values: Sequence[float]) -> tuple[float, float]:
    finite = [value for value in values if math.isfinite(value)]
    return min(finite, default=math.nan), max(finite, default=math.nan)


def chart(values: Sequence[float], columns: int = CHART_COLUMNS, rows: int = CHART_ROWS) -> list[str]:
    """A line through the values, left to right, drawn with the dots of Braille characters.

    Args:
        values: at least one; those that are not finite leave a gap.
        columns: characters of each line.
        rows: lines.

    Returns:
        The lines from the top, each of `columns` characters; the highest value touches the first, the lowest the last.
    """
    low, high = _range(values)
    across, down = 2 * columns, 4 * rows
    scale = (down - 1) / (high - low) if high > low else 0.0
    cells = [[_BRAILLE] * columns for _ in range(rows)]
    before = None
    for column, value in enumerate(np.interp(np.linspace(0, len(values) - 1, across), range(len(values)), values)):
        height = round((high - value) * scale) if math.isfinite(value) else None
        if height is not None:
            # From just after the dot before, so that a steep line has no gaps.
            before = height if before is None else before
            step = 1 if height >= before else -1
            for dot in range(before + step if abs(height - before) > 1 else height, height + step, step):
                cells[dot // 4][column // 2] |= _DOTS[dot % 4][column % 2]
        before = height
    return ["".join(map(chr, row)) for row in cells]
