"""The trials of `benchmarks.kills`: runs on a real Ray whose processes are killed, and what they leave."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import os
import random
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray
from ray.train import FailureConfig, RunConfig, ScalingConfig
from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer

from benchmarks.harness.figures import Record
from benchmarks.harness.trials import Trial, chance_of, until
from benchmarks.kill_runs import BASELINE_STEPS, INTERVAL_SECONDS, KILLS_PER_RUN
from benchmarks.kill_runs import work as kill_work
from benchmarks.kill_runs.observation import RunObservation, final_state, in_background, kill, kill_worker, orphans
from workloads.checkpoints.store import CheckpointStore
from workloads.convnext import config as configuration
from workloads.convnext.config import TrainConfig
from workloads.convnext.run import driver
from workloads.convnext.run.run import Run
from workloads.convnext.run.train_group import ProcessGroup
from workloads.errors import WorkloadError, WorkloadFailedError
from workloads.reporting.history import history
from workloads.storage.folders import locate

CPUS = 4
"""CPUs of the Ray that all trials share; a trial takes one, two or four of them."""

EPOCHS = 14
"""Epochs of a run that is killed twice: 112 steps."""

ABSENCE_TIMEOUT_SECONDS = 3.0


@dataclass(frozen=True)
class Bench:
    """A place for trials."""

    directory: Path

    @property
    def data(self) -> Path:
        return self.directory / "numbered"

    def config(self, **changes: Any) -> TrainConfig:
        """Nano on the numbered images, unaltered on their way to the model."""
        return dataclasses.replace(
            configuration.digits_laptop(),
            **{"data": str(self.data), "augmentation": "none", "checkpoint_seconds": INTERVAL_SECONDS, **changes},
        )

    def run(self, name: str, config: TrainConfig, workers: int = 2, least: int | None = None, **changes: Any) -> Run:
        """A run of this bench."""
        given = Run(
            name=name,
            attempt=f"{time.time_ns()}",
            config=config,
            folder=locate(self.directory / "runs" / name),
            results=self.directory / "results" / name,
            workers=workers,
            least_workers=workers if least is None else least,
            gpus_per_node=0,
            gpu_max_nodes=0,
            timeout=120,
        )
        return dataclasses.replace(given, **changes)


def tried(bench: Bench, trial: Trial, given: argparse.Namespace, expected: str) -> Record:
    """The record of one trial, even a failed one, with the machine's load at its start.

    Args:
        bench: the trial's place.
        trial: part and number.
        given: numbers of kills.
        expected: the final state of a run that nobody kills.
    """
    began, load = time.monotonic(), round(os.getloadavg()[0], 1)
    try:
        record = _trial(bench, trial, given, expected)
    except (WorkloadError, TimeoutError) as error:
        record = {"failed": f"{type(error).__name__}: {error}"}
    return {"seconds": round(time.monotonic() - began, 1), "load": load, **record}


def _trial(bench: Bench, trial: Trial, given: argparse.Namespace, expected: str) -> Record:
    part, number = trial
    name, chance = f"{part}-{number}", chance_of(trial)
    match part:
        case "killed" | "unforked":
            return killed_run(bench, name, KILLS_PER_RUN, chance, expected)
        case "streamed":
            # Unaltered, streamed images are the resident ones, so the run must end like that of resident ones.
            return killed_run(bench, name, KILLS_PER_RUN, chance, expected, resident=False, loader_workers=1)
        case "resized":
            return resized_run(bench, name, chance)
        case "absent":
            return absent_rank(bench, name, ABSENCE_TIMEOUT_SECONDS, chance)
        case "drivers":
            return killed_drivers(bench, name, given.drivers, chance)
        case _:
            return baseline(bench, name, given.baseline, chance)


def undisturbed(bench: Bench, name: str) -> str:
    """The final state of a run that nobody kills."""
    run = bench.run(name, bench.config(epochs=EPOCHS))
    driver.fit(run, work=kill_work.observed)
    return final_state(run)


def killed_run(bench: Bench, name: str, kills: int, chance: random.Random, expected: str, **changes: Any) -> Record:
    """One run, with some kills at random moments."""
    run = bench.run(name, bench.config(epochs=EPOCHS, **changes))
    seen = RunObservation(Path(f"{run.folder.path}-observed"))
    done: list[dict[str, float]] = []

    def strike() -> None:
        until(lambda: bool(seen.attempts()))
        for _ in range(kills):
            done.append(kill_worker(seen, chance.uniform(0.05, 2.5 * INTERVAL_SECONDS), chance))

    with in_background(strike):
        driver.fit(run, work=kill_work.observed)
    return {
        "kills": done,
        "orphans": orphans(run),
        "equal": final_state(run) == expected,
        **seen.exactness(EPOCHS, kill_work.IMAGES),
    }


def resized_run(bench: Bench, name: str, chance: random.Random) -> Record:
    """One run on two different numbers of ranks, killed on each, and stopped at a random moment in between."""
    legs = [bench.run(name, bench.config(epochs=EPOCHS), workers=size) for size in chance.sample([1, 2, 4], k=2)]
    seen = RunObservation(bench.directory / "runs" / f"{name}-observed")
    for leg, run in enumerate(legs):
        stop = seen.folder / kill_work.STOP
        before = len(seen.attempts())

        def strike(before: int = before, stop: Path | None = None if leg else stop) -> None:
            until(lambda: len(seen.attempts()) > before)
            kill_worker(seen, chance.uniform(0.05, 1.5 * INTERVAL_SECONDS), chance)
            if stop is not None:
                time.sleep(chance.uniform(0.05, INTERVAL_SECONDS))
                stop.touch()

        with in_background(strike), contextlib.suppress(WorkloadFailedError):
            driver.fit(run, work=kill_work.observed)
        stop.unlink(missing_ok=True)
    worlds = [seen.first(attempt)["world"] for attempt in seen.attempts()]
    return {"worlds": worlds, "orphans": orphans(legs[-1]), **seen.exactness(EPOCHS, kill_work.IMAGES)}


def absent_rank(bench: Bench, name: str, timeout: float, chance: random.Random) -> Record:
    """One rank does not join a collective."""
    run = bench.run(name, bench.config(epochs=8), collective_timeout=timeout)
    folder = Path(f"{run.folder.path}-observed")
    folder.mkdir(parents=True)
    order = {"rank": chance.randrange(2), "step": chance.randrange(10, 40)}
    (folder / kill_work.ABSENT).write_text(json.dumps(order))
    driver.fit(run, work=kill_work.observed)
    seen = RunObservation(folder)
    since = float((folder / "absent-since").read_text())
    restarted = seen.first(seen.attempts()[1])["time"]
    return {
        "beyond_timeout": restarted - since - timeout,
        "orphans": orphans(run),
        **seen.exactness(8, kill_work.IMAGES),
    }


def killed_drivers(bench: Bench, name: str, kills: int, chance: random.Random) -> Record:
    """The command `train` itself, killed and restarted over and over: one run from first to last."""
    run = bench.run(name, bench.config())
    flags = [
        *("--run", name, "--data", str(bench.data), "--epochs", "400", "--workers", "2", "--wandb", "off"),
        *("--storage", str(bench.directory / "runs"), "--results", str(bench.directory / "results")),
        *("--address", ray.get_runtime_context().gcs_address),
    ]
    store = CheckpointStore(run.folder.child("checkpoints"), 3)
    continued = 0
    newest = ""
    for _ in range(kills + 1):
        _killed_driver(flags, store, newest, chance.uniform(0, INTERVAL_SECONDS))
        resumed = [record["name"] or "" for record in history(run.folder) if record["event"] == "resumed"]
        continued += bool(newest) and resumed[-1] >= newest
        newest = store.committed()[-1]
    return {"drivers_killed": kills, "continued": continued}


def _killed_driver(flags: list[str], store: CheckpointStore, newest: str, wait: float) -> None:
    """One driver, killed some time after its first checkpoint beyond `newest`."""
    process = subprocess.Popen(
        [sys.executable, "-m", "workloads", "train", *flags], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        until(lambda: (store.committed() or [""])[-1] > newest, 120)
        time.sleep(wait)
    finally:
        process.kill()
        process.wait()


def baseline(bench: Bench, name: str, kills: int, chance: random.Random) -> Record:
    """Ray Train's own checkpoints and resume, with its defaults, killed in the same way."""
    run = bench.run(name, bench.config(epochs=400))
    seen = RunObservation(Path(f"{run.folder.path}-observed"))
    storage = bench.directory / "ray-train"
    trainer = DataParallelTrainer(
        kill_work.baseline,
        train_loop_config={"config": run.config.to_dict(), "run": run.folder.uri, "every": BASELINE_STEPS},
        backend_config=ProcessGroup(timeout_seconds=60, data=run.config.data),
        scaling_config=ScalingConfig(num_workers=2, resources_per_worker={"CPU": 1}),
        run_config=RunConfig(name=name, storage_path=str(storage), failure_config=FailureConfig(max_failures=kills)),
    )
    done: list[dict[str, float]] = []

    def strike() -> None:
        until(lambda: bool(seen.attempts()))
        for _ in range(kills):
            done.append(kill_worker(seen, chance.uniform(0.05, 4 * INTERVAL_SECONDS), chance))
        pids = seen.pids(seen.attempts()[-1])
        kill(pids[0])  # one more than the run survives, which ends it

    with in_background(strike), contextlib.suppress(Exception):
        trainer.fit()
    named = [file.read_text() for file in (storage / name).glob("checkpoint_manager_snapshot.json")]
    folders = [folder.name for folder in (storage / name).glob("checkpoint_*") if folder.is_dir()]
    return {"kills": done, "orphans": sum(not any(folder in text for text in named) for folder in folders)}
