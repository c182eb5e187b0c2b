"""A search on a real Ray, with everything that may happen to it, as a user sees it."""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.conftest import Cluster
from tests.cluster.test_train import survivors, until
from tests.support.processes import begun, descendants, usual_variables
from workloads.convnext.images import digits

pytestmark = pytest.mark.ray

SPACE = """
learning_rate: [0.002, 0.00002]
batch_size: [64, 5000]  # the data set has 1437 images
"""


@dataclass(frozen=True)
class Place:
    """A folder with the data, the space file, the runs and the results."""

    directory: Path

    def start(self, *flags: str) -> subprocess.Popen[str]:
        """`tune` as a user starts it, two trials at a time."""
        words = ["tune", "--run", "s", "--space", str(self.directory / "space.yaml"), "--samples", "4"]
        words += ["--epochs", "16", "--wandb", "off", "--data", str(self.directory / "digits")]
        words += ["--storage", str(self.directory / "runs"), "--results", str(self.directory / "results"), *flags]
        variables = usual_variables(OMP_NUM_THREADS="1", PYTHONUNBUFFERED="1")
        return begun("-m", "workloads", *words, env=variables, process_group=0)

    @property
    def search(self) -> Path:
        """Folder of the search and its trials."""
        return self.directory / "runs" / "s"

    def saved(self) -> list[str]:
        """Trials with a committed checkpoint."""
        return sorted(path.parts[-4] for path in self.search.glob("*/checkpoints/*/COMMIT"))

    def outcomes(self) -> dict[str, dict[str, Any]]:
        """Of the trials that have ended."""
        return {path.parent.name: json.loads(path.read_text()) for path in self.search.glob("*/trial.json")}


def trial_process(search: subprocess.Popen[str], trial: str) -> int | None:
    """Process id of a trial's `train`: the one whose messages go to the trial's log."""
    found = [pid for pid, line in descendants(search.pid).items() if "tune.child" in line]
    return next((pid for pid in found if messages(pid).endswith(f"/{trial}/train.log")), None)


def messages(pid: int) -> str:
    """File of a process's standard error."""
    try:
        return str(Path(f"/proc/{pid}/fd/2").readlink())
    except OSError:  # it ended meanwhile
        return ""


def test_a_search_survives_crashing_and_killed_trials_and_its_own_end_and_runs_no_trial_twice(tmp_path: Path) -> None:
    place = Place(tmp_path)
    digits.write(str(tmp_path / "digits"), lambda _: None)
    (tmp_path / "space.yaml").write_text(SPACE)

    first = place.start()
    until(place.saved, first)
    family = descendants(first.pid)
    assert sum("tune.child" in line for line in family.values()) in (1, 2)
    os.killpg(first.pid, signal.SIGTERM)  # as `timeout` does, and answered as Ctrl-C is
    said, _ = first.communicate(timeout=400)
    assert first.returncode == 130, said
    assert "interrupted; the same command with --run s goes on with the trials that are left" in said
    assert survivors(family) == {}
    begun = next(trial for trial in place.saved() if trial not in place.outcomes())
    before = place.outcomes()

    second = place.start()
    until(lambda: trial_process(second, begun), second)
    killed = trial_process(second, begun)
    assert killed is not None
    os.kill(killed, signal.SIGKILL)
    said, _ = second.communicate(timeout=400)
    assert second.returncode == 0, said
    assert "Traceback" not in said
    after = place.outcomes()
    assert {name: after[name] for name in before} == before
    for outcome in after.values():  # none missing, none told twice; all of them unless a milestone stopped it
        reached = 16 if outcome["status"] == "complete" else len(outcome["epochs"])
        assert [epoch["epoch"] for epoch in outcome["epochs"]] == list(range(1, reached + 1))
    journals = sorted((tmp_path / "results" / "s" / begun / "journal").iterdir())
    assert '"event": "resumed"' in journals[-1].read_text()
    for outcome in after.values():
        changes = outcome["trial"]["changes"]
        if changes["batch_size"] == 5000:
            assert (outcome["status"], outcome["exit_code"]) == ("failed", 2)
            assert "batch_size is 5000" in outcome["problem"]
        else:
            assert outcome["status"] in (("complete",) if changes["learning_rate"] > 1e-3 else ("complete", "stopped"))
    assert len(after) == 4
    summary = json.loads((tmp_path / "results" / "s" / "summary.json").read_text())
    assert summary["best"]["val/accuracy"] > 0.95
    assert f"--learning-rate 0.002 --batch-size 64 --storage {place.search.parent}\n" in said
    for name in ("table.txt", "trials.jsonl", "trials.csv", "summary.json", "parallel.png", "curves.png"):
        assert (place.search / "results" / name).read_bytes() == (tmp_path / "results" / "s" / name).read_bytes()

    third = place.start()
    said, _ = third.communicate(timeout=400)
    assert third.returncode == 0, said
    assert "4 of them have ended already" in said
    assert place.outcomes() == after


def test_a_submitted_sweep_takes_its_space_along_and_leaves_results_in_the_bucket_and_here(
    cluster: Cluster, tmp_path: Path
) -> None:
    environment = cluster.environment
    written = cluster.run("digits", "--to", f"{environment.data_uri}/digits")
    assert written.returncode == 0, written.stderr
    (tmp_path / "space.yaml").write_text("learning_rate: [0.001, 0.002]\ndrop_path: 0.05\n")
    name = f"sweep-{secrets.token_hex(4)}"
    sweep = ["sweep", "--run", name, "--space", str(tmp_path / "space.yaml"), "--epochs", "2", "--wandb", "off"]
    done = cluster.run("submit", "--results", str(tmp_path / "results"), "--", *sweep, timeout=400)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 trials over learning_rate" in done.stdout
    assert "2 trials at a time, 1 worker each" in done.stdout  # two nodes of one CPU, and no autoscaler
    assert not any(word in done.stdout + done.stderr for word in ("(raylet)", "WARNING", "packaging.py"))
    here, kept = tmp_path / "results" / name, cluster.bucket(environment.runs_uri) / name
    names = {"table.txt", "trials.jsonl", "trials.csv", "summary.json", "parallel.png", "curves.png"}
    assert {path.name for path in here.iterdir()} == {path.name for path in (kept / "results").iterdir()} == names
    summary = json.loads((here / "summary.json").read_text())
    assert summary["trials"] == {"complete": 2, "stopped": 0, "failed": 0, "unfinished": 0}
    assert summary["best"]["command"] in done.stdout
    assert summary["best"]["command"].startswith("python -m workloads submit -- train --run")
    assert f"plots: {environment.runs_uri}/{name}/results" in done.stdout  # and no folder of the job's
    for trial in (f"{name}-000", f"{name}-001"):
        assert list((kept / trial / "checkpoints").rglob("COMMIT"))
        assert (kept / trial / "results" / "curve.png").read_bytes().startswith(b"\x89PNG")


def test_trials_one_after_another_train_in_one_process_and_a_stopped_one_keeps_no_place(tmp_path: Path) -> None:
    place = Place(tmp_path)
    digits.write(str(tmp_path / "digits"), lambda _: None)
    (tmp_path / "space.yaml").write_text("learning_rate: [0.002, 0.00002, 0.00001]\n")
    search = place.start("--samples", "3", "--concurrency", "1", "--epochs", "3")
    processes: set[int] = set()
    while search.poll() is None:
        processes |= {pid for pid, line in descendants(search.pid).items() if "tune.child" in line}
        time.sleep(0.2)
    said, _ = search.communicate()
    assert search.returncode == 0, said
    assert len(place.outcomes()) == 3 and "failed" not in said
    assert len(processes) == 1
