"""What a finished run shows: its curve as a picture and as a table."""

from __future__ import annotations

from typing import Any

from workloads import curve


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


def test_bars_rise_with_the_values_and_fit_the_width() -> None:
    assert curve.bars([0.0, 0.5, 1.0]) == "▁▅█  0.0% to 100.0%"
    assert curve.bars([0.9]) == "▁  90.0% to 90.0%"
    assert len(curve.bars([number / 500 for number in range(500)], width=60).split()[0]) == 60


def test_the_curve_is_a_png_also_for_a_run_that_finished_no_epoch() -> None:
    for history in (epochs(12, best=9), []):
        assert curve.draw(history, "ConvNeXt nano on digits: demo").startswith(b"\x89PNG\r\n")
    assert curve.table([]) == "no epoch was finished"
