"""Searches up to where Ray comes in: spaces, trials, milestones, outcomes, what is left behind and what it says."""

from __future__ import annotations

import argparse
import csv
import dataclasses
import io
import itertools
import json
import math
import os
import queue
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.command_line import LAPTOP, CommandLine
from tests.support.command_line import parsed as arguments
from tests.support.processes import python, write_program
from tests.support.waiting import eventually
from workloads import run_name
from workloads.cluster import run_beat, session
from workloads.convnext import config, fields
from workloads.convnext.images import location
from workloads.convnext.run import train
from workloads.environment import SUBMITTED_VARIABLE
from workloads.errors import (
    EXIT_INTERRUPTED,
    AuthError,
    CapacityError,
    DataIntegrityError,
    InfeasibleError,
    PlaceError,
    UsageError,
    WorkloadFailedError,
)
from workloads.reporting import progress
from workloads.storage.folders import check_writable, locate
from workloads.tune import command, concurrency, planning, plot, report, space
from workloads.tune.ledger import OUTCOME, PLAN, Epoch, Ledger, Outcome, Plan, Trial, best, ranking
from workloads.tune.processes import Process
from workloads.tune.search import Milestones, Runner, TrialQueue

BASE = config.digits_laptop()


def parsed(**fields: Any) -> space.Space:
    return space.parse(fields, BASE)


def options(tmp_path: Path, kind: str, content: str, *flags: str) -> argparse.Namespace:
    add = {"tune": command.add_tune_arguments, "sweep": command.add_sweep_arguments}[kind]
    file = tmp_path / "space.yaml"
    file.write_text(content)
    places = ("--storage", str(tmp_path / "runs"), "--results", str(tmp_path / "results"))
    return arguments(add, "--space", str(file), *places, *flags, command=kind)


def a_plan(count: int = 4, **changes: Any) -> Plan:
    trials = [Trial(name=f"s-{index:03d}", changes={"learning_rate": 0.001 * (index + 1)}) for index in range(count)]
    values: dict[str, Any] = {"kind": "tune", "base": {"epochs": 9}, "space": {}, "metric": "val/accuracy"}
    values |= {"search_seed": 0, "grace_epochs": 1, "reduction": 3, "trials": trials}
    return Plan(**values | changes)


def epoch(number: float, accuracy: float, loss: float = 1.0) -> Epoch:
    return {"epoch": number, "val/accuracy": accuracy, "val/loss": loss}


def test_every_kind_of_range_draws_what_its_field_takes_and_nothing_outside_it() -> None:
    drawn = parsed(
        learning_rate={"loguniform": ["1e-4", 1e-2]},  # YAML reads 1e-4 without a dot as text
        drop_path={"uniform": [0, 0.3]},
        weight_decay={"quniform": [0.01, 0.1, 0.03]},
        batch_size={"lograndint": [16, 256]},
        seed={"randint": [0, 3]},
        augmentation=["none", "shift"],
        label_smoothing={"range": [0, 0.3, 0.1]},
        epochs=8,
        clip_norm={"choice": [0, 1]},
    ).sample(300, seed=1)
    columns = {name: [trial[name] for trial in drawn] for name in drawn[0]}
    for name, low, high in (("learning_rate", 1e-4, 1e-2), ("drop_path", 0, 0.3), ("weight_decay", 0.01, 0.1)):
        assert low <= min(columns[name]) < max(columns[name]) <= high
    assert 0.35 < sum(rate < 1e-3 for rate in columns["learning_rate"]) / 300 < 0.65  # half the decades, half the draws
    assert set(columns["weight_decay"]) == {0.01, 0.03, 0.06, 0.09}
    assert (min(columns["batch_size"]) >= 16, max(columns["batch_size"]) <= 255) == (True, True)
    assert set(columns["seed"]) == {0, 1, 2}
    assert set(columns["label_smoothing"]) == {0.0, 0.1, 0.2, 0.3}
    assert set(columns["epochs"]) == {8}
    assert {type(value) for value in columns["clip_norm"]} == {float}
    assert {type(value) for value in columns["batch_size"]} == {int}


def test_the_same_seed_draws_the_same_trials_however_many_and_in_whatever_order_the_file_has_them() -> None:
    rate, batch = {"loguniform": [1e-4, 1e-2]}, [32, 64]
    few = parsed(learning_rate=rate, batch_size=batch).sample(5, seed=3)
    assert parsed(batch_size=batch, learning_rate=rate).sample(9, seed=3)[:5] == few
    assert parsed(learning_rate=rate, batch_size=batch).sample(5, seed=4) != few


def test_a_grid_has_every_combination_and_a_draw_no_trial_twice() -> None:
    both = parsed(batch_size=[32, 64], seed={"range": [0, 2, 1]}, epochs=3)
    assert both.varied == ["batch_size", "seed"]
    assert both.fixed == {"epochs": 3}
    least = BASE.batch_size  # of `accumulate` it is the most
    assert parsed(accumulate=2 * least, batch_size=4 * least).fixed["accumulate"] == 2 * least
    assert parsed(accumulate=[1, 2 * least], batch_size=4 * least).varied == ["accumulate"]
    expected = [{"batch_size": size, "seed": seed, "epochs": 3} for size in (32, 64) for seed in (0, 1, 2)]
    assert both.grid() == expected
    assert sorted(map(json.dumps, both.sample(6, 0))) == sorted(map(json.dumps, expected))
    with pytest.raises(UsageError, match="has 6 different trials; 7 were asked for"):
        both.sample(7, 0)
    with pytest.raises(UsageError, match="20,000 trials; at most 10,000 are allowed"):
        parsed(seed={"range": [0, 9_999, 1]}, batch_size=[32, 64]).grid()


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"learning_rates": [1]}, "learning_rates is not a field of the configuration (did you mean learning_rate?)."),
        ({"recipe": ["digits_laptop"]}, "recipe is not a field of the configuration"),
        ({"epochs": []}, "epochs has no values"),
        ({"epochs": [1, 2, 1.0]}, "epochs has a value twice in"),
        ({"epochs": [2.5]}, "epochs has 2.5; it takes a whole number"),
        ({"compile": ["yes"]}, 'compile has "yes"; it takes true or false'),
        ({"model": [3]}, "model has 3; it takes a word"),
        ({"model": ["huge"]}, "model is 'huge' but must be one of nano"),
        ({"model": {"uniform": [0, 1]}}, "model is not a number, so uniform does not fit"),
        ({"learning_rate": {"loguniforn": [1, 2]}}, "(did you mean loguniform?)"),
        ({"learning_rate": {"uniform": [0.1, 0.2], "choice": [1]}}, "instead of one kind of range"),
        ({"learning_rate": {"uniform": [0.2, 0.1]}}, "low below high"),
        ({"learning_rate": {"uniform": [0.1]}}, "it takes [low, high]"),
        ({"learning_rate": {"uniform": 3}}, "it takes [low, high]"),
        ({"learning_rate": {"loguniform": [0, 0.1]}}, "low above 0"),
        ({"learning_rate": {"uniform": [0.1, 20]}}, "learning_rate is 20.0 but must be between 0 and 10"),
        ({"learning_rate": {"randint": [1, 5]}}, "not a whole number, so it takes uniform, quniform or loguniform"),
        ({"epochs": {"uniform": [1, 5]}}, "epochs is a whole number, so it takes randint or lograndint"),
        ({"epochs": {"randint": [1.5, 5]}}, "its ends are whole numbers"),
        ({"epochs": {"range": [1, 5, 9]}}, "a step between them"),
        ({"seed": {"range": [0, 2e9, 1]}}, "10,000 values are allowed"),
        ({"seed": {"range": [0, 10_000, 1]}}, "10,000 values are allowed"),  # with the first and the last one more
        ({"epochs": [0], "seed": [-1]}, "epochs is 0 but must be at least 1; seed is -1 but must be"),
        ({}, "names no field"),
    ],
)
def test_a_wrong_space_is_refused_by_field_with_what_is_allowed(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError) as caught:
        parsed(**fields)
    assert message in caught.value.problem


@pytest.mark.parametrize(
    ("kind", "content", "flags", "message"),
    [
        ("tune", "[1", (), "cannot be read: while parsing"),
        ("tune", "data: 2026-13-01", (), "cannot be read: month must be in 1..12"),
        ("tune", "seed: &seeds [1, *seeds]", (), "cannot be read: Circular reference"),
        ("tune", "seed: !!set {1, 2}", (), 'seed has "{1, 2}"; it takes a whole number'),
        ("tune", "2026-02-03: 1", (), "cannot be read: keys must be str"),
        ("tune", "- 1", (), "names no field"),
        ("tune", "epochs: [1, 2]", (), "epochs cannot be varied by tune"),
        ("tune", "seed: [1, 2]", ("--samples", "0"), "--samples is 0"),
        ("tune", "seed: [1, 2]", ("--reduction", "1"), "--reduction is 1"),
        ("sweep", "learning_rate: {uniform: [0.1, 0.2]}", (), "learning_rate: a sweep runs every combination"),
        ("sweep", "seed: [1, 2]", ("--run", "Big"), "--run is 'Big'"),
        ("sweep", "seed: [1, 2]", ("--run", "a" * 53), "--run has 53 letters"),
        ("sweep", "batch_size: [8, 64]", ("--workers", "9"), "a batch of 8 images can be shared by 1 to 8"),
        ("sweep", "seed: [1, 2]", ("--concurrency", "0"), "--concurrency is 0"),
        ("sweep", "seed: [1, 2]", ("--recipe", "digit"), "did you mean digits_laptop"),
    ],
)
def test_what_no_search_can_have_is_refused_before_anything_starts(
    tmp_path: Path, kind: Any, content: str, flags: tuple[str, ...], message: str
) -> None:
    with pytest.raises(UsageError) as caught:
        planning.plan(options(tmp_path, kind, content, *flags), LAPTOP)
    assert message.lower() in str(caught.value).lower()
    assert list(tmp_path.iterdir()) == [tmp_path / "space.yaml"]


@pytest.mark.parametrize("kind", ["tune", "sweep"])
def test_a_dry_run_shows_the_trials_and_each_value_of_theirs_with_its_origin(
    tmp_path: Path, kind: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("OASIS_DATA_MOUNT", raising=False)
    drawn = "{loguniform: [1e-4, 0.01]}" if kind == "tune" else "[0.001, 0.01]"
    content = f"learning_rate: {drawn}\nbatch_size: 128\nepochs: 4\n"
    # The recipe's own batch is too small for so many, and the space's epochs are those that count.
    flags = ("--run", "s", "--workers", "100", "--epochs", "7", *(("--samples", "30") if kind == "tune" else ()))
    args = options(tmp_path, kind, content, *flags)
    capsys.readouterr()
    assert command.explain_tune(args, LAPTOP) == 0
    shown = capsys.readouterr().out
    count = 30 if kind == "tune" else 2
    assert shown.startswith(f"{kind} s: {count} trials over learning_rate\n  s-000: learning_rate 0.00")
    assert ("  and 10 more\n" in shown) == (count > command.SHOWN)
    assert shown.endswith("\nasked of Ray: 100 x [1 CPU], placed SPREAD\nnothing was started\n")
    args.json = True
    assert command.explain_tune(args, LAPTOP) == 0
    found = json.loads(capsys.readouterr().out)
    space = f"space {tmp_path / 'space.yaml'}"
    expected = {
        "run": ("s", "flag --run"),
        "recipe": ("digits_laptop", "default"),
        "workers": ("100", "flag --workers"),
        "epochs": (4, space),
        "batch-size": (128, space),
        "learning-rate": ('loguniform ["1e-4", 0.01]' if kind == "tune" else "choice [0.001, 0.01]", space),
        "weight-decay": (0.05, "recipe digits_laptop"),
        "metric": ("val/accuracy", "default"),
        "storage": (str(tmp_path / "runs" / "s"), "flag --storage"),
        "results": (str(tmp_path / "results" / "s"), "flag --results"),
        "data-place": (str(Path(".oasis/data/digits").absolute()), "scikit-learn's, written there by the run"),
    }
    settings = {name: (one["value"], one["origin"]) for name, one in found["settings"].items()}
    assert {name: settings[name] for name in expected} == expected
    assert ("grace-epochs" in settings, "set" in settings) == (kind == "tune", False)
    assert len(found["trials"]) == count and found["trials"]["s-001"]["batch_size"] == 128
    assert not (tmp_path / "runs").exists() and not (tmp_path / "results").exists()


def test_any_field_without_a_flag_can_be_set_in_words() -> None:
    words = ["drop-path=1e-1", "clip_norm=0", "compile=true", "augmentation=none", "keep_checkpoints=2"]
    given = fields.assigned(words, train.TUNED_FIELDS)
    assert given == {
        "drop_path": 0.1, "clip_norm": 0.0, "compile": True, "augmentation": "none", "keep_checkpoints": 2
    }  # fmt: skip
    trial = Trial(name="s-000", changes=given)
    words = report.assignments(trial)
    assert words[::2] == ["--set"] * 5
    assert fields.assigned(words[1::2], train.TUNED_FIELDS) == given
    for word, said in (
        ("drop_path", "is not FIELD=VALUE"),
        ("epochs=3", "epochs has a flag of its own, --epochs"),
        ("drop_paths=1", "did you mean drop_path"),
        ("compile=1", "it takes true or false"),
        ("keep_checkpoints=2.5", "it takes a whole number"),
    ):
        with pytest.raises(UsageError, match=said):
            fields.assigned([word], train.TUNED_FIELDS)


def test_the_space_to_copy_is_one() -> None:
    found = space.parse(space.read(Path(space.__file__).with_suffix(".yaml")), BASE)
    assert found.varied == ["learning_rate", "batch_size", "drop_path", "seed"]
    assert found.fixed == {"warmup_epochs": 2.0}
    assert found.logarithmic == {"learning_rate"}
    assert len(found.sample(20, seed=0)) == 20


def test_a_field_that_stands_twice_in_a_space_file_is_named_with_its_lines(tmp_path: Path) -> None:
    file = tmp_path / "space.yaml"
    file.write_text("seed: [1, 2]\nepochs: [3]\nseed: [4]\n")
    with pytest.raises(UsageError, match="cannot be read: seed stands twice, on line 1 and on line 3"):
        space.read(file)


def test_a_space_file_has_a_name_that_travels_with_a_job(tmp_path: Path) -> None:
    (tmp_path / "space.txt").touch()
    for name, message in (("space.txt", "must end in one of .yaml"), ("absent", "No such file")):
        with pytest.raises(UsageError, match=message):
            space.read(tmp_path / name)


def test_a_search_that_is_at_work_on_another_cluster_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cli: CommandLine
) -> None:
    monkeypatch.setattr(session, "prepare", lambda _: session.Place(address="h", environment=None))
    monkeypatch.setattr(run_beat, "BEAT_SECONDS", 0.2)
    (tmp_path / "space.yaml").write_text("seed: [1, 2]\n")
    words = ("sweep", "--run", "s", "--space", tmp_path / "space.yaml", "--data", "synthetic")
    folder = locate(tmp_path / "runs/s")
    with run_beat.keep(folder, "s", "first", print):
        eventually(lambda: run_beat.BEAT in folder.files())
        said = cli(*map(str, words), "--storage", str(tmp_path / "runs"), "--results", str(tmp_path), code=2).err
    assert "run s is being trained elsewhere, by attempt first" in said


def test_searches_that_begin_in_the_same_second_have_names_of_their_own(tmp_path: Path) -> None:
    args = options(tmp_path, "sweep", "learning_rate: [0.1, 0.2]", "--recipe", max(config.RECIPES, key=len))
    names = {planning.plan(args, LAPTOP).name for _ in range(2)}
    assert len(names) == 2


def test_the_best_trial_s_command_trains_what_the_trial_trained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = "learning_rate: {loguniform: [1e-4, 1e-2]}\nbatch_size: [32, 64]\nmodel: nano\n"
    content += "drop_path: [0, 0.1]\ncompile: [true, false]\naugmentation: [none, shift]"
    name = "s" * planning.NAME_LENGTH
    args = options(tmp_path, "tune", content, "--samples", "6", "--epochs", "3", "--data", "/elsewhere", "--run", name)
    search = planning.plan(args, LAPTOP)
    assert [trial.name for trial in search.plan.trials] == [f"{name}-{index:03d}" for index in range(6)]
    last = Trial(name=f"{name}-{space.MAX_TRIALS - 1}", changes={})
    run_name.check("--run", report.command(search, last).split()[5])
    for trial in search.plan.trials:
        words = report.command(search, trial).split()
        assert words[:4] == ["python", "-m", "workloads", "train"]
        run = train.plan(arguments(train.add_train_arguments, *words[4:]), LAPTOP)
        assert run.config == dataclasses.replace(BASE, epochs=3, data="/elsewhere", **trial.changes)
        assert (run.workers, run.name, run.folder.uri) == (1, f"{trial.name}-again", f"{args.storage}/{run.name}")
        with monkeypatch.context() as job:
            job.setenv(SUBMITTED_VARIABLE, "--stack dev --ray-job")
            submitted = report.command(search, trial).split()
        assert submitted == [*words[:3], "submit", "--stack", "dev", "--ray-job", "--", *words[3:]]


def ended(trial: Trial, status: Any = "complete", *epochs: Epoch, **more: Any) -> Outcome:
    return Outcome(trial=trial, status=status, epochs=list(epochs), **more)


def test_a_search_goes_on_with_the_trials_that_have_no_outcome_and_never_with_another_search(tmp_path: Path) -> None:
    folder, plan = locate(tmp_path / "s"), a_plan()
    ledger = Ledger(folder, plan)
    assert ledger.outcomes == {}
    ledger.begin()
    good = ended(plan.trials[0], "complete", epoch(1, 0.5), epoch(2, math.nan, math.inf), exit_code=0)
    ledger.close(good)
    ledger.close(ended(plan.trials[2], "failed", exit_code=6, problem="torn"))
    again = Ledger(folder, plan).outcomes
    assert set(again) == {"s-000", "s-002"}
    assert again["s-000"].epochs[0] == good.epochs[0] and math.isnan(again["s-000"].epochs[1]["val/accuracy"])
    assert set(Ledger(folder, plan, retry_failed=True).outcomes) == {"s-000"}
    assert set(Ledger(folder, a_plan(6)).outcomes) == {"s-000", "s-002"}  # more samples of the same space
    for other, said in (
        (a_plan(6, metric="val/loss"), "metric is 'val/loss', that search's is 'val/accuracy'"),
        (a_plan(6, base={"epochs": 3}), "has another search: base.epochs is 3, that search's is 9."),
        (a_plan(6, space={"seed": [1]}), r"space.seed is \[1\], that search's is None."),
        (a_plan(2), "it has 4 trials, 2 asked for"),  # a look at it with more has added none
    ):
        with pytest.raises(UsageError, match=said):
            Ledger(folder, other)
    for torn in (tmp_path / "s" / "s-000" / OUTCOME, tmp_path / "s" / PLAN):
        torn.write_text(torn.read_text()[:40])
        with pytest.raises(DataIntegrityError, match="is damaged"):
            Ledger(folder, a_plan(6))


class Queue:
    """The trials of a search as its runner takes them, without processes."""

    def __init__(self, tmp_path: Path, plan: Plan, limit: int) -> None:
        self.said: list[str] = []
        self.storage = locate(tmp_path / "s")
        self.ledger = Ledger(self.storage, plan)
        self.trials = TrialQueue(self.ledger, limit, self.said.append, self.check)

    def check(self, trial: Trial) -> None:
        """As a search looks at its place."""
        check_writable(self.storage)

    def take(self) -> str | None:
        """Name of the trial that is handed out, if one is."""
        trial = self.trials.take()
        return trial and trial.name


def said(number: float, accuracy: float) -> dict[str, Any]:
    """An epoch's end as `train` says it."""
    return {"event": "epoch", **epoch(number, accuracy)}


def test_a_search_says_what_each_of_its_trials_does_or_waits_for(tmp_path: Path) -> None:
    search = Queue(tmp_path, a_plan(), limit=4)
    assert [search.take() for _ in range(4)] == ["s-000", "s-001", "s-002", "s-003"]
    search.trials.see("s-003", {"event": "note", "text": "1 worker started; reading the data"})
    words = "waiting for 1 worker with 1 CPU: 0 of them up"
    for name in ("s-000", "s-001"):
        search.trials.see(name, {"event": "note", "text": f"{words}; at most 1800 s"})
    search.trials.see("s-001", {"event": "step", "epoch": 0.5})
    search.trials.see("s-001", {"event": "note", "text": "a checkpoint was passed over"})
    search.trials.see("s-002", said(1, 0.9))
    search.trials.end("s-002", 0)
    assert f"s-000: {words}, s-001: epoch 0.5, s-003: 1 worker started, best" in search.said[-1]
    search.trials.see("s-003", said(1, 0.5))
    search.trials.end("s-003", EXIT_INTERRUPTED)
    assert search.ledger.state()[3].epochs == [epoch(1, 0.5)]


def test_trials_run_up_to_the_limit_and_a_crash_ends_only_its_own(tmp_path: Path) -> None:
    search = Queue(tmp_path, a_plan(), limit=2)
    assert [search.take(), search.take(), search.take()] == ["s-000", "s-001", None]
    search.trials.see("s-001", said(1, 0.7))
    search.trials.end("s-000", 6, "torn.png cannot be decoded.")
    assert search.take() == "s-002"
    search.trials.see("s-001", said(2, 0.8))
    search.trials.end("s-001", None)  # stopped at a milestone
    search.trials.end("s-002", 5, "its process was killed 3 times")
    assert search.take() == "s-003"
    search.trials.see("s-003", said(1, 0.6))
    search.trials.see("s-003", said(1, 0.9))  # told again after a restart
    search.trials.end("s-003", 0)
    assert search.take() is None
    states = {name: (outcome.status, outcome.exit_code) for name, outcome in search.trials.outcomes.items()}
    assert states == {
        "s-000": ("failed", 6), "s-001": ("stopped", None), "s-002": ("failed", 5), "s-003": ("complete", 0)
    }  # fmt: skip
    assert search.trials.outcomes["s-003"].epochs == [epoch(1, 0.9)]
    assert "trial s-000 failed: torn.png cannot be decoded." in search.said
    assert search.said[-1].startswith("4 of 4 trials ended, 1 complete, 2 failed, 1 stopped, best s-003")
    again = Queue(tmp_path, a_plan(5), limit=2)
    assert [again.take(), again.take()] == ["s-004", None]


def test_a_trial_without_a_place_waits_for_others_and_ends_the_search_only_when_there_are_none(tmp_path: Path) -> None:
    search = Queue(tmp_path, a_plan(2), limit=2)
    assert [search.take(), search.take()] == ["s-000", "s-001"]
    late = (4, "Not there within 5 s.")
    search.trials.see("s-001", said(1, 0.5))
    search.trials.end("s-001", *late)
    assert search.take() is None
    search.trials.see("s-000", said(9, 0.9))
    search.trials.end("s-000", 0)
    assert search.take() == "s-001"
    search.trials.see("s-001", said(2, 0.6))
    search.trials.end("s-001", *late)
    assert search.take() is None
    assert isinstance(search.trials.verdict, CapacityError)
    assert list(search.trials.outcomes) == ["s-000"]
    # What it had reached before it found no place is not forgotten.
    table = {outcome.trial.name: outcome.epochs for outcome in search.ledger.state()}
    assert [one["epoch"] for one in table["s-001"]] == [1, 2]


def test_trials_that_all_fail_alike_are_not_all_tried(tmp_path: Path) -> None:
    search = Queue(tmp_path, a_plan(20), limit=1)
    for number in range(8):
        assert search.take() == f"s-{number:03d}"
        search.trials.end(f"s-{number:03d}", 2, "no data")
    assert search.take() is None
    assert isinstance(search.trials.verdict, WorkloadFailedError)


@pytest.mark.parametrize(("exit_code", "kind"), [(3, InfeasibleError), (7, AuthError), (8, PlaceError)])
def test_what_is_wrong_with_the_place_ends_the_search_and_is_no_trial_s_fault(
    tmp_path: Path, exit_code: int, kind: type
) -> None:
    search = Queue(tmp_path, a_plan(3), limit=2)
    assert [search.take(), search.take()] == ["s-000", "s-001"]
    (tmp_path / "no-folder").touch()
    search.storage = locate(tmp_path / "no-folder")
    search.trials.end("s-000", exit_code, "the bucket is gone.")
    assert search.take() is None
    search.trials.see("s-001", said(9, 0.9))  # what runs may end
    search.trials.end("s-001", 0)
    assert search.take() is None
    assert type(search.trials.verdict) is kind
    assert list(search.trials.outcomes) == ["s-001"]


def test_a_trial_that_calls_a_place_bad_which_is_in_order_has_failed_and_the_others_go_on(tmp_path: Path) -> None:
    search = Queue(tmp_path, a_plan(9), limit=1)
    dead = (8, "a process that decodes images has died.")
    assert search.take() == "s-000"
    search.trials.end("s-000", *dead)
    assert (search.trials.verdict, search.take()) == (None, "s-001")
    assert "trial s-000 failed: a process that decodes images has died." in search.said
    again = Queue(tmp_path, a_plan(9), limit=1)  # the same search, later: it does not fall over the same trial
    assert {name: outcome.exit_code for name, outcome in again.trials.outcomes.items()} == {"s-000": 8}
    # Where each trial fails so, the others are not tried.
    for number in range(1, 8):
        assert again.take() == f"s-{number:03d}"
        again.trials.end(f"s-{number:03d}", *dead)
    assert again.take() is None
    assert isinstance(again.trials.verdict, WorkloadFailedError)


def test_the_place_of_a_trial_is_its_own_data_and_the_search_s_storage(tmp_path: Path) -> None:
    for name in ("here", "there"):
        for split in location.SPLITS:
            (tmp_path / name / split).mkdir(parents=True)
    content = f"data: [{tmp_path}/here, {tmp_path}/there]"
    search = planning.plan(options(tmp_path, "sweep", content, "--run", "s"), LAPTOP)
    here, there = search.plan.trials
    for trial in (here, there):
        command.check_place(search, LAPTOP, trial)
    (tmp_path / "there" / "train").rmdir()
    command.check_place(search, LAPTOP, here)
    with pytest.raises(UsageError, match="there holds no folder 'train'"):
        command.check_place(search, LAPTOP, there)
    search.results.rmdir()
    search.results.touch()
    with pytest.raises(PlaceError, match="cannot write results to"):
        command.check_place(search, LAPTOP, here)
    search.results.unlink()
    (tmp_path / "runs" / "s").touch()
    with pytest.raises(PlaceError):
        command.check_place(search, LAPTOP, here)


def test_milestones_stop_the_worse_two_thirds_and_a_resumed_search_decides_as_one_that_never_stopped(
    tmp_path: Path,
) -> None:
    plan = a_plan(5)
    whole = Milestones(Ledger(locate(tmp_path / "whole"), plan))
    assert not whole.stop("s-000", epoch(1, 0.9))
    assert whole.stop("s-001", epoch(1, 0.8))
    assert not whole.stop("s-000", epoch(2, 0.1))  # no milestone
    assert not whole.stop("s-001", epoch(9, 0.9))
    assert not whole.stop("s-000", epoch(9, 0.1))  # the last epoch: nothing is left to stop

    ledger = Ledger(locate(tmp_path / "resumed"), plan)
    ledger.begin()
    ledger.close(ended(plan.trials[1], "stopped", epoch(1, 0.8)))
    record = {**said(1, 0.9), "step": 10}
    ledger.folder.child("s-000", "journal").write("1.jsonl", json.dumps(record).encode())
    resumed = Milestones(Ledger(ledger.folder, plan))
    for milestones in (whole, resumed):
        # The best third of 0.8, 0.9 begins at 0.867, of 0.8, 0.88, 0.9 at 0.887: each counts the ones before.
        assert not milestones.stop("s-002", epoch(1, 0.88))
        assert milestones.stop("s-003", epoch(1, 0.87))
        assert milestones.stop("s-004", epoch(1, math.nan))  # diverged: worse than any number
    by_loss = Milestones(Ledger(locate(tmp_path / "loss"), a_plan(4, metric="val/loss")))
    losses = {"s-000": math.nan, "s-001": 1.0, "s-002": math.inf, "s-003": math.nan}
    stopped = [trial for trial, loss in losses.items() if by_loss.stop(trial, epoch(1, 0.5, loss))]
    assert stopped == ["s-002", "s-003"]


SIGNALLED = """
import os, signal, sys
from contextlib import nullcontext
from workloads.tune import child

def emit(record, say=child.progress.emit):
    os.kill(os.getpid(), signal.SIGINT)  # between two trials
    say(record)

child.session.connect = lambda *_, **__: nullcontext()
child.progress.emit = emit
child.command_line.main = lambda words: print(*words) or 0
child.main(os.getppid(), "")
"""


@pytest.mark.thorough
def test_an_interruption_between_two_trials_is_for_the_next_and_no_trial_s_end_is_lost_to_it(tmp_path: Path) -> None:
    log = str(tmp_path / "log")
    lines = "".join(f"{json.dumps({'arguments': [name], 'log': log})}\n" for name in ("first", "second"))
    done = python("-c", SIGNALLED, input=lines, env={**os.environ, progress.FORM_VARIABLE: "json"}, check=True)
    printed = done.stdout.splitlines()
    assert printed[0] == "first" and [json.loads(line)["exit_code"] for line in printed[1:]] == [0, 130]


def test_a_trial_whose_log_is_on_a_full_disk_has_its_place_to_blame_and_its_process_goes_on() -> None:
    program = """
from workloads.tune import child
from workloads.errors import PlaceError
def refused(words):
    raise PlaceError("the disk is full.", "Free some.")
child.session.release_places = lambda: None
child.command_line._run = refused
print([child._train(child._Interruption(), [], "/dev/full") for _ in range(2)])
"""
    done = python("-c", program)
    assert done.stdout == f"{[PlaceError.exit_code] * 2}\n"


def test_a_process_whose_trial_ended_by_itself_just_as_it_was_told_to_end_gets_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The signal may have come too late for that trial, and would end the next."""
    begun: list[object] = []
    left: list[object] = []

    class Told:
        def __init__(self, address: str, log: Path, tell: Callable[..., None]) -> None:
            self.tell = tell

        def begin(self, words: list[str], log: Path) -> None:
            begun.append(self)
            told = said(1, 0.1) if len(begun) > 1 else said(1, 0.9)
            self.tell(self, told)
            self.tell(self, {"event": "ended", "exit_code": 0})
            self.tell(self, {"event": "note", "text": "W&B is late"})

        def interrupt(self) -> None:
            """Too late."""

        def leave(self) -> None:
            left.append(self)

    monkeypatch.setattr("workloads.tune.search.Process", Told)
    trials = Queue(tmp_path, plan := a_plan(3), limit=1)
    milestones = Milestones(Ledger(locate(tmp_path / "other"), plan))
    Runner(trials.trials, milestones, "", lambda trial: ([trial.name], tmp_path / "log")).run()
    assert [outcome.status for outcome in trials.trials.outcomes.values()] == ["complete", "stopped", "stopped"]
    assert begun[0] is begun[1] and begun[2] is not begun[1] and left[0] is begun[1]


def test_a_trial_whose_process_cannot_be_started_for_the_place_s_sake_goes_on_when_the_search_does(
    tmp_path: Path,
) -> None:
    search = Queue(tmp_path, a_plan(3), limit=2)
    (tmp_path / "full").touch()
    search.storage = locate(tmp_path / "full")
    Runner(search.trials, None, "", lambda trial: ([trial.name], tmp_path / "full" / trial.name / "log")).run()
    assert isinstance(search.trials.verdict, PlaceError)
    assert str(search.trials.verdict).endswith(
        "then run the same command again. Trials that have ended are kept; only the others will run."
    )
    assert search.trials.outcomes == {}


def test_an_interruption_while_a_trial_s_end_is_read_ends_the_search(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Told:
        def __init__(self, address: str, log: Path, tell: Callable[..., None]) -> None:
            self.tell = tell

        def begin(self, words: list[str], log: Path) -> None:
            self.tell(self, {"event": "ended", "exit_code": EXIT_INTERRUPTED})

        def failure(self) -> str:
            raise KeyboardInterrupt

        def interrupt(self) -> None:
            """It has no trial."""

        def leave(self) -> None:
            self.tell(self, None)

    monkeypatch.setattr("workloads.tune.search.Process", Told)
    monkeypatch.setattr("workloads.tune.search.STOP_SECONDS", 0)
    search = Queue(tmp_path, a_plan(1), limit=1)
    Runner(search.trials, None, "", lambda trial: ([trial.name], tmp_path / "log")).run()
    assert search.trials.outcomes == {} and search.trials.running == {}


PROCESS = r"""
printf '\377\n{"event": "note", "text": "%s"}\n' "$HOME"
exec cat
"""


def test_a_process_has_the_environment_of_its_search_and_tells_of_its_own_trial_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "train.log"
    monkeypatch.setattr(sys, "executable", str(write_program(tmp_path / "python", PROCESS)))
    monkeypatch.setenv("HOME", "elsewhere")  # as `provide_digits` sets another data mount than this process came with
    heard: queue.SimpleQueue[Any] = queue.SimpleQueue()
    log.write_text("error: an earlier attempt's.\n")
    process = Process("", log, lambda _, record: heard.put(record))
    try:
        assert heard.get(timeout=20) == {"event": "note", "text": "elsewhere"}
        process.begin([], log)
        failures = [process.failure()]
        for words in ("Traceback:\nRuntimeError: CUDA error: 3\n", "error: run s: CUDA error: 3.\nWait.\n"):
            with log.open("a") as stream:
                stream.write(words)
            failures.append(process.failure())
        assert failures == ["it printed nothing", "RuntimeError: CUDA error: 3", "run s: CUDA error: 3."]
        log.unlink()
        assert process.failure() == f"its log {log} cannot be read: No such file or directory"
    finally:
        process.leave()


def test_results_are_a_table_json_lines_csv_and_a_plot_with_the_best_complete_trial_first(tmp_path: Path) -> None:
    plan = a_plan(5)
    outcomes = [
        ended(plan.trials[0], "complete", epoch(9, 0.9, 0.5), seconds=3.0, exit_code=0),
        ended(plan.trials[1], "complete", epoch(9, 0.9, 0.4), seconds=3.0, exit_code=0),
        ended(plan.trials[2], "stopped", epoch(1, 0.99), seconds=1.0),
        ended(plan.trials[3], "failed", exit_code=6, problem="torn.png [cannot] be decoded."),
        ended(plan.trials[4], "complete", epoch(9, math.nan, math.nan), exit_code=0),
    ]
    search = planning.Search(
        name="s",
        plan=plan,
        space=parsed(learning_rate=[0.001, 0.002]),
        folder=locate(tmp_path / "runs" / "s"),
        results=tmp_path / "results",
        workers=1,
        storage="",
        train=("--recipe", "r"),
    )
    ranked = ranking(plan, outcomes)
    assert [outcome.trial.name[-1] for outcome in ranked] == ["1", "0", "4", "2", "3"]
    uri = report.publish(search, ranked)
    names = {"table.txt", "trials.jsonl", "trials.csv", "summary.json", "parallel.png", "curves.png"}
    for folder in (tmp_path / "results", Path(uri)):
        assert {path.name for path in folder.iterdir()} == names
    full = dataclasses.replace(search, results=tmp_path / "results" / "table.txt")
    with pytest.raises(PlaceError, match=r"cannot write results to .*table.txt: File exists; they are in"):
        report.publish(full, ranked)
    table = (tmp_path / "results" / "table.txt").read_text().splitlines()
    assert table[3].split() == ["001", "best", "9", "0.9000", "0.4000", "3", "0.002"]
    assert table[-1] == "s-003: torn.png [cannot] be decoded."
    rows = [json.loads(line) for line in (tmp_path / "results" / "trials.jsonl").read_text().splitlines()]
    assert [row["trial"] for row in rows] == ["s-001", "s-000", "s-004", "s-002", "s-003"]
    assert rows[2]["val/loss"] is None
    assert rows[0]["command"].endswith("--learning-rate 0.002")
    [*_, last] = csv.DictReader(io.StringIO((tmp_path / "results" / "trials.csv").read_text()))
    assert (last["status"], last["exit_code"], last["learning_rate"]) == ("failed", "6", "0.004")
    assert json.loads((tmp_path / "results" / "summary.json").read_text())["best"]["trial"] == "s-001"
    assert (tmp_path / "results" / "parallel.png").read_bytes().startswith(b"\x89PNG")
    # Of a trial that was stopped there is no other curve.
    with_it, without = (plot.curves(search, drawn) for drawn in (ranked, [*ranked[:3], *ranked[4:]]))
    assert with_it == (tmp_path / "results" / "curves.png").read_bytes() != without
    by_loss = best(ranking(a_plan(5, metric="val/loss"), outcomes))
    assert by_loss is not None and by_loss.trial.name == "s-001"
    tied = [dataclasses.replace(outcomes[0], epochs=[epoch(9, 0.1, loss)]) for loss in (math.nan, 2.0, math.inf)]
    assert next(outcome.last["val/loss"] for outcome in ranking(plan, tied)) == 2.0


def test_labels_of_an_axis_do_not_lie_on_one_another_and_its_ends_have_theirs() -> None:
    for values, ends in (
        ([0.001, 0.00101, 0.0098, 0.01], ["0.001", "0.01"]),
        ([f"model-{number:02}" for number in range(60)], ["model-00", "model-59"]),
        ([0.5], ["0.5"]),
    ):
        ticks = plot.scale(values, logarithmic=values[0] == 0.001)[1]
        assert [ticks[place][1] for place in sorted({0, len(ticks) - 1})] == ends
        assert all(there - here >= plot.LABEL_HEIGHT for (here, _), (there, _) in itertools.pairwise(ticks))


def test_as_many_trials_run_as_fit_and_never_more() -> None:
    said: list[str] = []
    assert concurrency.of_gpus(8, 8, 2) == 2
    assert concurrency.of_gpus(3, 8, 2) == 4  # two beside each other on a node, none across two
    assert concurrency.of_gpus(16, 8, 5) == 2
    with pytest.raises(InfeasibleError, match="24 GPUs asked for per trial; this stack has at most 2 nodes of 8"):
        concurrency.of_gpus(24, 8, 2)
    assert concurrency.of_cpus(2, [1.0, 4.0], 0) == 2
    assert concurrency.of_cpus(2, [4.0], 3) == 6  # with the nodes that the autoscaler can add
    assert concurrency.of_cpus(2, [], 3) == 1
    assert concurrency.embedded(10_000) == 1
    assert [concurrency.choose(asked, 3, 2, said.append) for asked in (None, 2, 5)] == [3, 2, 3]
    assert said[2] == "3 trials at a time, 2 workers each; 5 were asked for, and no more fit"


def test_a_search_in_which_nothing_succeeded_ends_with_the_code_of_what_all_failed_of() -> None:
    trials = a_plan(2).trials
    torn = [ended(trial, "failed", exit_code=6, problem="torn") for trial in trials]
    assert type(command._failure(torn)) is DataIntegrityError
    mixed = [torn[0], dataclasses.replace(torn[1], exit_code=2)]
    assert type(command._failure(mixed)) is WorkloadFailedError
