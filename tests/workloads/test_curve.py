"""What a finished run shows: its curve as a picture and as a table."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from workloads.reporting import curve


def epochs(count: int, best: int) -> list[dict[str, Any]]:
    """A history in which one epoch has the highest accuracy."""
    return [
        {
            "event": "epoch",
            "step": 10 * epoch,
            "epoch": float(epoch),
            "train/loss": 2 / epoch,
            "train/accuracy": 1 - 0.5 / epoch,
            "train/images_per_second": 1000.0,
            "val/loss": 1 / epoch,
            "val/accuracy": 0.99 if epoch == best else 1 - 0.6 / epoch**0.5,
        }
        for epoch in range(1, count + 1)
    ]


def test_the_table_is_short_and_has_the_last_epoch_and_the_best_one() -> None:
    lines = curve.table(epochs(40, best=17)).splitlines()
    rows = lines[2 : lines.index("")]
    assert len(rows) <= curve.TABLE_ROWS + 1
    assert rows[-1].split()[0] == "40"
    assert [row.split()[0] for row in rows if row.endswith("best")] == ["17"]
    assert len({row.split()[0] for row in rows}) == len(rows)


def test_a_chart_goes_through_its_values_without_a_gap_and_within_its_frame() -> None:
    assert curve.chart([0.0, 1.0], columns=4, rows=2) == ["\u2800\u2800\u2860\u280a", "\u2860\u280a\u2800\u2800"]
    assert curve.chart([5.0], columns=3, rows=2) == ["\u2809\u2809\u2809", "\u2800\u2800\u2800"]
    jagged = curve.chart([0.0, 10.0, 0.0, 10.0, 5.0] * 9, columns=30, rows=7)
    assert [len(line) for line in jagged] == [30] * 7
    for column in range(30):
        lit = [bool(ord(line[column]) & mask) for line in jagged for mask in (0x09, 0x12, 0x24, 0xC0)]
        first, last = lit.index(True), len(lit) - 1 - lit[::-1].index(True)
        assert all(lit[first : last + 1]), column


def test_an_epoch_whose_loss_is_not_finite_is_a_gap_in_its_chart_and_in_the_picture() -> None:
    history = epochs(5, best=4)
    for broken in (history[2:], history):
        for record, loss in zip(broken, (math.nan, math.inf, -math.inf, math.nan, math.inf), strict=False):
            record["val/loss"] = loss
        assert "validation accuracy 73.2%" in curve.table(history)
        assert curve.draw(history, "demo").startswith(b"\x89PNG\r\n")
    assert curve.chart([0.0, math.nan, 1.0, 1.0], columns=2, rows=1) == ["\u2840\u2809"]
    assert curve.chart([math.nan], columns=2, rows=1) == ["\u2800\u2800"]


def test_restarts_are_told_and_drawn() -> None:
    begun = {"event": "resumed", "name": None, "step": 0, "epoch": 0.0}
    restarts = [{"event": "resumed", "name": f"c-{step}", "step": step, "epoch": step / 10} for step in (35, 70)]
    history = [begun, *epochs(12, best=9), *restarts]
    assert "restarted at step 35, 70" in curve.table(history)
    assert "restarted" not in curve.table([begun, *epochs(12, best=9)])
    assert curve.draw(history, "demo") != curve.draw([begun, *epochs(12, best=9)], "demo")


def test_what_was_planned_is_no_restart() -> None:
    def resumed(attempt: str, step: int) -> dict[str, Any]:
        return {"event": "resumed", "attempt": attempt, "name": f"c-{step}", "step": step, "epoch": step / 10}

    history = [
        {**resumed("one", 0), "name": None},
        resumed("one", 30),
        {"event": "checkpoint", "name": "c-50", "reason": "resize"},
        resumed("one", 50),
        resumed("two", 120),
        resumed("two", 130),
    ]
    told = curve.table([*epochs(14, best=9), *history]).splitlines()
    assert {"restarted at step 30, 130", "resized at step 50", "continued at step 120"} <= set(told)


def test_a_continuation_after_which_nothing_was_trained_is_not_marked() -> None:
    begun = {"event": "resumed", "attempt": "one", "name": None, "step": 0, "epoch": 0.0}
    useless = {"event": "resumed", "attempt": "two", "name": "c-120", "step": 120, "epoch": 12.0}
    history = [begun, *epochs(12, best=9)]
    assert curve.table([*history, useless]) == curve.table(history)
    assert curve.draw([*history, useless], "demo") == curve.draw(history, "demo")


def test_the_key_lies_outside_the_axes_and_covers_no_mark() -> None:
    continued = {"event": "resumed", "attempt": "two", "name": "c-50", "step": 50, "epoch": 5.0}
    begun = {"event": "resumed", "attempt": "one", "name": None, "step": 0, "epoch": 0.0}
    figure = curve.figure_of([begun, *epochs(12, best=9), continued], "demo")
    figure.draw_without_rendering()
    assert [axes.get_legend() for axes in figure.axes] == [None, None]
    (key,) = figure.legends
    assert not any(key.get_window_extent().overlaps(axes.get_window_extent()) for axes in figure.axes)
    named = [text.get_text() for text in key.get_texts()]
    assert named == ["training, augmented: each epoch", "continued at epoch 5", "validation"]


def test_the_charts_fit_a_terminal_of_80_columns() -> None:
    lines = curve.table(epochs(300, best=200)).splitlines()
    assert max(map(len, lines)) <= 80
    assert "validation loss 0.003" in "\n".join(lines) and "validation accuracy" in "\n".join(lines)


def test_the_picture_shows_every_value_and_its_legend_nothing_else() -> None:
    def step(epoch: float, accuracy: float) -> dict[str, Any]:
        return {"event": "step", "step": 0, "epoch": epoch, "train/loss": 2.0, "train/accuracy": accuracy}

    steps = [step(0.1, 0.12), step(0.5, 0.4), step(1.0, 0.7)]
    named = {"training, augmented: each step", "training, augmented: each epoch", "validation"}
    for history, labels in (([*steps, *epochs(9, best=9)], named), ([*steps, *epochs(1, best=1)], named), (steps, {})):
        for axes in curve.figure_of(history, "demo").axes:
            low, high = axes.get_ylim()
            drawn = [line for line in axes.get_lines() if not str(line.get_label()).startswith("_")]
            for values, line in ((np.asarray(line.get_ydata()), line) for line in drawn):
                assert low <= values.min() and values.max() <= high
                assert (len(values) > 1) == (line.get_linestyle() == "-")
            assert {str(line.get_label()) for line in drawn} == (labels or {"training, augmented: each step"})


def test_the_curve_is_a_png_also_for_a_run_that_finished_no_epoch() -> None:
    for history in (epochs(12, best=9), []):
        assert curve.draw(history, "ConvNeXt nano on digits: demo").startswith(b"\x89PNG\r\n")
    assert curve.table([]) == "no epoch was finished"
