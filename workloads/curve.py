"""The training curve of a run: as a PNG and as a table for the terminal, from the journal's records alone."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter

Record = dict[str, Any]

INK = "#1f2933"
FAINT = "#9aa5b1"
TRAIN = "#5b8def"
VALIDATION = "#d9480f"

TABLE_ROWS = 12
BARS = "▁▂▃▄▅▆▇█"


def epochs_of(records: Sequence[Record]) -> list[Record]:
    """The records that end an epoch."""
    return [record for record in records if record["event"] == "epoch"]


def draw(records: Sequence[Record], title: str) -> bytes:
    """Loss and accuracy over epochs, as the bytes of a PNG.

    Args:
        records: one run's merged journal.
        title: what was trained on what.
    """
    figure = Figure(figsize=(11, 4.4), dpi=130, layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(title, color=INK, fontsize=12, fontweight="bold", x=0.01, ha="left")
    loss, accuracy = figure.subplots(1, 2)
    steps = [record for record in records if record["event"] == "step"]
    epochs = epochs_of(records)
    _panel(loss, steps, epochs, "loss")
    _panel(accuracy, steps, epochs, "accuracy")
    accuracy.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    if epochs:
        _mark_last(loss, epochs[-1]["epoch"], epochs[-1]["val/loss"], f"{epochs[-1]['val/loss']:.3f}")
        _mark_last(accuracy, epochs[-1]["epoch"], epochs[-1]["val/accuracy"], f"{epochs[-1]['val/accuracy']:.1%}")
        low = min(record["val/accuracy"] for record in epochs)
        accuracy.set_ylim(min(low, 0.5) - 0.02, 1.01)
    image = io.BytesIO()
    figure.savefig(image, format="png")
    return image.getvalue()


def _panel(axes: Axes, steps: Sequence[Record], epochs: Sequence[Record], quantity: str) -> None:
    axes.set_title(quantity, loc="left", color=INK, fontsize=10)
    axes.set_xlabel("epoch", color=INK)
    axes.grid(axis="y", color="#e4e7eb", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.spines["bottom"].set_color(FAINT)
    axes.tick_params(colors=INK, length=0, labelsize=9)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.plot([r["epoch"] for r in steps], [r[f"train/{quantity}"] for r in steps], color=TRAIN, alpha=0.3, linewidth=1)
    ends = [r["epoch"] for r in epochs]
    axes.plot(ends, [r[f"train/{quantity}"] for r in epochs], color=TRAIN, linewidth=1.8, label="training")
    axes.plot(ends, [r[f"val/{quantity}"] for r in epochs], color=VALIDATION, linewidth=2.2, label="validation")
    axes.set_xlim(left=0)
    axes.margins(x=0.08)
    axes.legend(frameon=False, fontsize=9, labelcolor=INK, loc="best")


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


def table(records: Sequence[Record]) -> str:
    """One row per epoch, thinned to a dozen, the best marked, and the accuracy as a line of bars beneath."""
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
    return "\n".join(
        [header, "-" * len(header), *rows, "", f"val accuracy {bars([r['val/accuracy'] for r in epochs])}"]
    )


def bars(values: Sequence[float], width: int = 60) -> str:
    """The values as a line of block characters, each column the last value of its share."""
    columns = min(width, len(values))
    picked = [values[(column + 1) * len(values) // columns - 1] for column in range(columns)]
    low, high = min(picked), max(picked)
    scale = (len(BARS) - 1) / (high - low) if high > low else 0
    return "".join(BARS[round((value - low) * scale)] for value in picked) + f"  {low:.1%} to {high:.1%}"
