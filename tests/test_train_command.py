"""The command `train` up to where Ray comes in: its flags, and what it makes of them."""

from __future__ import annotations

import argparse
import dataclasses
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import ray.train

from workloads import session
from workloads.checkpoint import CheckpointStore
from workloads.convnext import train
from workloads.convnext.config import TrainConfig
from workloads.convnext.worker import Reporter, data_folder
from workloads.environment import DATA_MOUNT, ClusterEnvironment
from workloads.errors import UsageError
from workloads.storage import locate

FLAGS = {
    *("--recipe", "--run", "--data", "--model", "--epochs", "--batch-size", "--learning-rate", "--seed", "--workers"),
    *("--storage", "--results", "--wandb", "--wandb-key-file", "--address", "--timeout"),
}
"""The whole surface: a flag more is a decision, not an accident."""


def options(*argv: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    train.add_train_arguments(parser)
    return parser.parse_args(argv)


def cluster(**changes: Any) -> ClusterEnvironment:
    values = {field.name: 0 if field.type == "int" else "" for field in dataclasses.fields(ClusterEnvironment)}
    return ClusterEnvironment.from_mapping({**values, **changes})


def test_the_flags_are_these_and_each_tuned_one_is_a_field_of_the_configuration() -> None:
    parser = argparse.ArgumentParser()
    train.add_train_arguments(parser)
    assert {flag for action in parser._actions for flag in action.option_strings} - {"-h", "--help"} == FLAGS
    fields = {field.name for field in dataclasses.fields(TrainConfig)}
    assert set(train.TUNED_FIELDS) <= fields
    assert {"--" + name.replace("_", "-") for name in train.TUNED_FIELDS} <= FLAGS


def test_a_flag_changes_its_field_and_leaves_the_recipe_alone() -> None:
    laptop = session.Place(address=None, environment=None)
    run = train.plan(options("--run", "a", "--epochs", "3", "--batch-size", "32", "--learning-rate", "0.01"), laptop)
    recipe = train.configuration.digits_laptop()
    assert run.config == dataclasses.replace(recipe, epochs=3, batch_size=32, learning_rate=0.01)
    assert (run.workers, run.gpus_per_node) == (train.CPU_WORKERS, 0)
    assert run.folder.uri.endswith("/.oasis/runs/a")


def test_the_place_decides_workers_and_storage() -> None:
    gpus = cluster(gpus_per_node=8, gpu_max_nodes=2, runs_uri="gs://oasis-runs")
    run = train.plan(
        options("--run", "a", "--recipe", "imagenet_a3_ultra"), session.Place(address="h", environment=gpus)
    )
    assert (run.workers, run.gpus_per_node, run.gpu_max_nodes) == (8, 8, 2)
    assert run.folder.uri == "gs://oasis-runs/a"


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--run", "Big Run"), "--run is 'Big Run'; a name has up to 63 of"),
        (("--run", "../up"), "--run is '../up'"),
        (("--workers", "0"), "--workers is 0; a batch of 64 images can be shared by 1 to 64"),
        (("--workers", "65"), "--workers is 65"),
        (("--storage", "s3://bucket"), "is neither gs://BUCKET/PATH nor a local path"),
        (("--recipe", "imagenet"), "there is no recipe 'imagenet'; there are digits_laptop, imagenet_a3_ultra"),
        (("--model", "huge"), "model is 'huge' but must be one of"),
    ],
)
def test_what_no_run_can_have_is_refused_before_ray_is_started(flags: tuple[str, ...], message: str) -> None:
    with pytest.raises(UsageError) as caught:
        train.plan(options(*flags), session.Place(address=None, environment=None))
    assert message in str(caught.value)
    assert caught.value.exit_code == 2


def test_a_data_name_is_below_the_mount_and_a_path_is_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OASIS_DATA_MOUNT", raising=False)
    assert str(data_folder("digits")) == f"{DATA_MOUNT}/digits"
    monkeypatch.setenv("OASIS_DATA_MOUNT", "/mnt/elsewhere")
    assert str(data_folder("digits")) == "/mnt/elsewhere/digits"
    assert str(data_folder("/srv/digits")) == "/srv/digits"
    assert data_folder("synthetic") is None


@pytest.mark.parametrize(("rank", "kept"), [(0, 3), (1, 0)])
def test_only_the_rank_that_saves_keeps_the_history_until_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rank: int, kept: int
) -> None:
    reported: list[int] = []
    context = SimpleNamespace(get_world_rank=lambda: rank)
    monkeypatch.setattr(ray.train, "get_context", lambda: context)
    monkeypatch.setattr(ray.train, "report", lambda metrics: reported.append(len(metrics["records"])))
    folder = locate(tmp_path)
    reporter = Reporter(train.configuration.digits_laptop(), CheckpointStore(folder, 2), folder)
    for number in range(3):
        reporter.record({"event": "epoch", "step": number, "epoch": number + 1, "seconds": 1.0})
    assert len(reporter._segment) == kept
    assert reported == [kept // 3] * 3
