"""The platform's figures: a run replaces what it measured alone, and docs/figures.md says what was measured."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from benchmarks import platform
from tests.support.pages import section


def test_a_run_leaves_the_figures_of_the_parts_that_it_does_not_measure(tmp_path: Path) -> None:
    results = tmp_path / "platform.json"
    before = {"demo, first": {"date": "2026-01-02", "seconds": 5.0}, "cycles": {"date": "2026-01-02", "old": 1}}
    results.write_text(json.dumps(before))

    platform.keep("cycles", {"up seconds": {"median": 3.0}}, results)

    after = json.loads(results.read_text())
    assert after["demo, first"] == before["demo, first"]
    assert after["cycles"].keys() == {"date", "machine", "up seconds"}
    assert after["cycles"]["date"] > "2026-01-02"


def test_the_page_of_figures_says_what_was_measured() -> None:
    measured: Any = json.loads(platform.RESULTS.read_text())
    table = section("docs/figures.md", "The platform on one machine")
    demo, cycles = measured["demo, programs built"], measured["cycles"]

    spreads = [cycles[f"{verb} seconds"] for verb in ("up", "no-op up", "destroy")] + [demo["later runs, seconds"]]
    for found in spreads:
        assert re.search(rf"{found['median']:.1f} s \({found['least']:.1f} to {found['most']:.1f}\b", table), found
        assert found["runs"] == 3
    assert f"| {demo['seconds']:.0f} s (one run) |" in table
    assert f"of the {cycles['changes']['up']['create']} resources" in table
    usual = re.findall(r"GiB, (\S+) unless", table)
    assert [demo["date"]] == usual
    (row,) = [line for line in table.splitlines() if "with nothing to change" in line]
    assert (re.findall(r"\d{4}-\d\d-\d\d", row) or usual) == [cycles["date"]]
