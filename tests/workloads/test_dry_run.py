"""`--dry-run`: every value and where it came from, nothing secret among them."""

from __future__ import annotations

import dataclasses
import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.command_line import LAPTOP, CommandLine, parsed
from tests.support.stub_kubectl import OUTPUTS
from workloads import __main__ as command_line
from workloads import dry_run
from workloads.cluster import session
from workloads.convnext.config import TrainConfig
from workloads.convnext.images import digits
from workloads.convnext.run import preview, train
from workloads.dry_run import Settings

CANARY = "c0ffee" * 6 + "cafe"


def settings(*words: str, place: session.Place = LAPTOP) -> Settings:
    """What `train` with these words would use, by name."""
    args = parsed(train.add_train_arguments, *words)
    return dry_run.explain(args, train.add_train_arguments, preview.of_run(args, train.plan(args, place), place))


@pytest.fixture(autouse=True)
def no_stack_here(monkeypatch: pytest.MonkeyPatch, nothing_set: None) -> None:
    monkeypatch.setenv("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")  # another test of this process may have imported ray


def test_each_value_says_whether_a_flag_the_recipe_or_a_default_gave_it() -> None:
    found = settings("--run", "a", "--epochs", "3", "--timeout", "1800")
    expected = {
        "run": ("a", "flag --run"),
        "recipe": ("digits_laptop", "default"),
        "epochs": (3, "flag --epochs"),
        # As the default, and yet typed.
        "timeout": (1800.0, "flag --timeout"),
        "batch-size": (64, "recipe digits_laptop"),
        "weight-decay": (0.05, "recipe digits_laptop"),
        "workers": (2, "default"),
        "address": ("embedded, on 127.0.0.1", "default"),
        "forked-workers": (True, "default"),
        "data-place": (str(Path(".oasis/data/digits").absolute()), "scikit-learn's, written there by the run"),
        "wandb": ("auto", "default"),
        "wandb-key": ("none", "no file, variable or secret"),
    }
    assert {name: found[name] for name in expected} == expected
    assert found["storage"][1] == "default"
    assert str(found["storage"][0]).endswith("/.oasis/runs/a")


def test_every_flag_and_every_field_of_the_recipe_is_there() -> None:
    flags = {name.replace("_", "-") for name in vars(parsed(train.add_train_arguments))} - {"dry-run", "json", "words"}
    fields = {field.name.replace("_", "-") for field in dataclasses.fields(TrainConfig)}
    assert flags | fields <= set(settings())


def test_a_pod_s_values_are_its_variables_and_a_client_s_are_the_stack_s_and_none_of_this_machine(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OASIS_DATA_MOUNT", "/mnt/data")
    monkeypatch.setenv("OASIS_FORK_WORKERS", "0")
    monkeypatch.setenv("WANDB_API_KEY", CANARY)
    words = ("--recipe", "imagenet_a3_ultra", "--run", "a")
    pod = settings(*words, place=session.Place(address="10.0.0.1:6379", environment=OUTPUTS))
    expected = {
        "workers": (8, "variable OASIS_GPUS_PER_NODE"),
        "address": ("10.0.0.1:6379", "variable RAY_ADDRESS"),
        "forked-workers": (False, "variable OASIS_FORK_WORKERS"),
        "data-place": ("/mnt/data/imagenet", "variable OASIS_DATA_MOUNT"),
        "gpu-max-nodes": (4, "variable OASIS_GPU_MAX_NODES"),
        "storage": ("gs://test-runs/a", "variable OASIS_RUNS_URI"),
        "results": (str(Path(".oasis/results/a").absolute()), "default"),
        "wandb-key": ("[redacted]", "variable WANDB_API_KEY"),
    }
    assert {name: pod[name] for name in expected} == expected
    stack = replace(OUTPUTS, wandb_secret="projects/p/secrets/s")
    client = settings(*words, place=session.Place(address="RayCluster x", environment=stack, told_by="stack dev"))
    expected = {
        "workers": (8, "stack dev"),
        "address": ("RayCluster x", "where the job runs"),
        "forked-workers": (False, "default: tried on no GPU yet; OASIS_FORK_WORKERS=1 in the job turns it on"),
        "data-place": ("/data/imagenet", "default mount"),
        "gpu-max-nodes": (4, "stack dev"),
        "storage": ("gs://test-runs/a", "stack dev"),
        "results": (".oasis/results/a", "default"),
        "wandb-key": ("in Secret Manager, projects/p/secrets/s", "stack dev"),
    }
    assert {name: client[name] for name in expected} == expected


def test_a_key_s_place_is_shown_and_never_the_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "key").write_text(CANARY)
    with_file = settings("--wandb-key-file", str(tmp_path / "key"))
    assert with_file["wandb-key"][0] == f"in file {tmp_path / 'key'}"
    assert settings("--wandb-key-file", "/none")["wandb-key"][0] == "in file /none, which does not exist"
    monkeypatch.setenv("WANDB_API_KEY", CANARY)
    monkeypatch.setenv("RAY_AUTH_TOKEN", CANARY[::-1])
    # A secret in a place where nobody expects one is struck out all the same.
    found = settings("--data", f"gs://{CANARY}/x", "--storage", f"/tmp/{CANARY[::-1]}")
    assert found["wandb-key"] == ("[redacted]", "variable WANDB_API_KEY")
    for as_json in (False, True):
        dry_run.show(found, [{"CPU": 1}], "SPREAD", as_json)
    shown = capsys.readouterr().out
    assert CANARY not in shown and CANARY[::-1] not in shown
    assert "gs://[redacted]/x" in shown and "/tmp/[redacted]" in shown


def test_a_password_in_an_address_is_not_shown(capsys: pytest.CaptureFixture[str]) -> None:
    dry_run.show({"index": ("https://me:secret@example.com/simple", "default")}, [], "PACK", as_json=False)
    assert capsys.readouterr().out.startswith("index  https://[redacted]@example.com/simple  default\n")


def test_a_terminal_gets_a_table_with_the_whole_of_each_value(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    # What looks like markup is a value, and stays.
    value = "gs://a-bucket/[red]runs[0]/with-a-name-that-is-longer-than-its-column"
    for columns in ("200", "60"):
        monkeypatch.setenv("COLUMNS", columns)
        dry_run.show({"storage": (value, "flag --storage")}, [], "PACK", as_json=False)
        plain = re.sub(r"\x1b\[[0-9;]*m", "", capsys.readouterr().out)
        table, request = plain.split("asked of Ray: ")
        assert "where it came from" in table
        assert max(map(len, table.splitlines())) <= int(columns)
        rows = [line.removeprefix("storage").replace("flag --storage", "").strip() for line in table.splitlines()[1:]]
        assert "".join(rows) == value
        assert request.startswith("nothing, placed PACK")


def test_a_dry_run_prints_and_starts_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cli: CommandLine) -> None:
    monkeypatch.chdir(tmp_path)
    document = json.loads(cli("train", "--dry-run", "--json", "--seed", "7", "--wandb", "off").out)
    assert document["settings"]["seed"] == {"value": 7, "origin": "flag --seed"}
    assert document["settings"]["wandb-key"]["value"] == "not looked for"
    # Where the run itself writes and reads them.
    assert document["settings"]["data-place"]["value"] == str(tmp_path / ".oasis" / "data" / "digits")
    assert document["request"]["bundles"] == [{"CPU": 1}] * 2
    said = cli("train", "--dry-run", "--data", "/nonexistent", "--workers", "1:3", "--address", "h:6379").out
    assert re.search(r"^address +h:6379 +flag --address$", said, re.MULTILINE)
    assert said.endswith("\nasked of Ray: 3 x [1 CPU], placed SPREAD\nnothing was started\n")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("command", ["train", "tune --space x", "sweep --space x", "bench", "submit -- true"])
def test_the_form_of_an_answer_that_was_not_asked_for_and_a_wait_of_no_length_start_nothing(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cli: CommandLine
) -> None:
    monkeypatch.chdir(tmp_path)
    name, *rest = command.split()
    assert "--json was given without --dry-run" in cli(name, "--json", *rest, code=2).err
    for wait in ("-5", "nan", "soon"):
        with pytest.raises(SystemExit, match="2"):
            command_line.main([name, "--dry-run", "--timeout", wait, *rest])
    assert list(tmp_path.iterdir()) == []


def test_a_batch_larger_than_the_digits_is_refused_before_they_are_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cli: CommandLine
) -> None:
    monkeypatch.chdir(tmp_path)
    images = sum(name.startswith("train/") for name, _ in digits.images())
    assert command_line.main(["train", "--dry-run", "--batch-size", str(images)]) == 0
    said = cli("train", "--dry-run", "--batch-size", str(images + 1), code=2).err
    assert f"digits has {images} training images" in said
    assert list(tmp_path.iterdir()) == []
