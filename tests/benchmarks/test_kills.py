"""The oracle of `benchmarks.kills` and its verdicts: they must be able to see what they say is not there."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks import kills
from benchmarks.kill_runs import work as kill_work
from benchmarks.kill_runs.observation import RunObservation
from benchmarks.kill_runs.trials import Bench
from tests.support.training import CPU, Recorder
from workloads.convnext.images.data import sources


@pytest.fixture(scope="module")
def observed(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What a real training of one epoch wrote of itself, step by step."""
    bench = Bench(tmp_path_factory.mktemp("bench"))
    kill_work.write_images(bench.data)
    kill_work.FOLDERS[:] = [bench.directory / "observed"]
    config = bench.config(epochs=1)
    kill_work.Observed(config, *sources(config, bench.data, CPU), CPU).run(Recorder())
    (file,) = kill_work.FOLDERS[0].iterdir()
    return [json.loads(line) for line in file.read_text().splitlines()]


def exactness(folder: Path, lines: list[dict[str, Any]]) -> tuple[int, int]:
    folder.mkdir(exist_ok=True)
    (folder / "1-0.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    found = RunObservation(folder).exactness(1, kill_work.IMAGES)
    return found["missing"], found["repeated"]


def test_the_oracle_counts_images_by_what_is_in_them_and_sees_each_that_is_missing_or_repeated(
    observed: list[dict[str, Any]], tmp_path: Path
) -> None:
    assert sorted(number for line in observed for number in line["seen"]) == list(range(kill_work.IMAGES))
    assert exactness(tmp_path, observed) == (0, 0)
    assert exactness(tmp_path, observed[:-1]) == (64, 0)
    twice = {**observed[3], "seen": observed[2]["seen"]}
    assert exactness(tmp_path, [*observed[:3], twice, *observed[4:]]) == (64, 64)


def test_what_an_attempt_did_and_the_next_did_again_counts_once(observed: list[dict[str, Any]], tmp_path: Path) -> None:
    again = [{**line, "attempt": line["attempt"] + 1, "time": line["time"] + 9} for line in observed[4:]]
    assert exactness(tmp_path, [*observed[:6], *again]) == (0, 0)
    assert exactness(tmp_path, [*observed[:3], *again]) == (64, 0)  # it went on further than was done


@pytest.mark.parametrize(
    ("change", "right"),
    [
        ({}, True),
        ({"kills": [{"redone_seconds": 1.04, "longest_step": 0.05}]}, True),
        ({"kills": [{"redone_seconds": 1.06, "longest_step": 0.05}]}, False),
        ({"equal": False}, False),
        ({"orphans": 1}, False),
        ({"missing": 1}, False),
        ({"repeated": 1}, False),
        ({"beyond_timeout": 10.5}, False),
        ({"continued": 9}, False),
        ({"failed": "TimeoutError: not within 90 s"}, False),
    ],
)
def test_each_thing_lost_makes_a_trial_wrong(change: dict[str, Any], right: bool) -> None:
    record = {"orphans": 0, "missing": 0, "repeated": 0, "drivers_killed": 10, "continued": 10, **change}
    assert kills.right(record) == right


@pytest.mark.parametrize("part", kills.PARTS)
def test_a_part_of_which_every_trial_failed_has_figures_too(part: str) -> None:
    """Else no figures are kept, and the same command, which runs no trial twice, ends so again."""
    found = kills.PARTS[part]([{"part": part, "failed": "TimeoutError: not within 90 s"}])
    assert found.get("kills", 0) == found.get("orphans", 0) == 0
