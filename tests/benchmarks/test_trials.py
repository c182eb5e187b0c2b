"""Trials that are kept between invocations of a benchmark."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import collectives
from benchmarks.harness.trials import Trials


def test_a_mistyped_part_costs_no_kept_trial_and_fresh_forgets_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    trials = Trials(tmp_path / "trials.jsonl")
    trials.keep("kills", 0, {"seconds": 1.0})
    monkeypatch.setattr(collectives, "TRIALS", trials)
    monkeypatch.setattr(collectives, "measure", lambda given: None)
    results = ["--results", str(tmp_path / "collectives.json")]

    with pytest.raises(SystemExit):
        collectives.main([*results, "--fresh", "kils"])
    assert "no such part: kils; there are " in capsys.readouterr().err
    assert [record["part"] for record in trials.kept()] == ["kills"]

    collectives.main([*results, "--fresh", "kills"])
    assert trials.kept() == []
