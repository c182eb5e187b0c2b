"""The command `train` up to where Ray comes in: its flags, and what it makes of them."""

from __future__ import annotations

import dataclasses
import json
import os
import socket
import subprocess
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from unittest import mock

import pytest
from pyarrow.fs import LocalFileSystem
from ray._private import services
from ray._private.utils import validate_socket_filepath
from ray.exceptions import GetTimeoutError, RayActorError, RayTaskError
from ray.train.v2._internal.exceptions import WorkerGroupStartupFailedError, WorkerGroupStartupTimeoutError
from ray.train.v2._internal.execution.failure_handling import FailureDecision
from ray.train.v2.api.exceptions import ControllerError, WorkerGroupError

from tests.support.command_line import LAPTOP, CommandLine, parsed
from tests.support.processes import python
from tests.support.waiting import eventually
from workloads.__main__ import main
from workloads.checkpoints import manifest
from workloads.checkpoints import state as checkpoint_state
from workloads.checkpoints.store import CheckpointStore
from workloads.cluster import run_beat, run_lock, session
from workloads.convnext.images import location
from workloads.convnext.images.data import stores
from workloads.convnext.run import driver, end_of_node, train, train_group, trainer, worker
from workloads.convnext.run.run import Run
from workloads.environment import DATA_MOUNT, ClusterEnvironment, EnvironmentContractError
from workloads.errors import PlaceError, UsageError
from workloads.storage.folders import Folder, locate


def planned(*words: str, place: session.Place = LAPTOP) -> Run:
    return train.plan(parsed(train.add_train_arguments, *words), place)


def cluster(**changes: Any) -> ClusterEnvironment:
    values = {field.name: 0 if field.type == "int" else "" for field in dataclasses.fields(ClusterEnvironment)}
    return ClusterEnvironment.from_mapping({**values, **changes})


@pytest.mark.parametrize("given", ["-8", "7.5", "nan", "inf", "", "eight"])
def test_a_count_of_the_stack_that_is_none_is_named_with_its_value(given: str) -> None:
    with pytest.raises(EnvironmentContractError, match=f"gpus_per_node is {given!r}; it must be a whole number"):
        cluster(gpus_per_node=given)
    assert cluster(gpus_per_node="8.0").gpus_per_node == cluster(gpus_per_node=8).gpus_per_node == 8


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--run", "Big Run"), "--run is 'Big Run'; a name has up to 63 of"),
        (("--run", "../up"), "--run is '../up'"),
        (("--run", ""), "--run is ''"),
        (("--workers", "0"), "--workers is 0; it must be a number or MIN:MAX, from 1 to 64"),
        (("--workers", "65"), "--workers is 65"),
        (("--workers", "4:2"), "--workers is 4:2"),
        (("--workers", "1:"), "--workers is 1:;"),
        (("--workers", "many"), "--workers is many"),
        (("--storage", "s3://bucket"), "is neither gs://BUCKET/PATH nor a local path"),
        (("--max-usd", "0"), "--max-usd is 0; it must be an amount of USD above 0"),
        (("--max-usd", "-5"), "--max-usd is -5"),
        (("--max-usd", "nan"), "--max-usd is nan"),
        (("--max-usd", "5"), "what an hour of a node costs here is not known. Set OASIS_NODE_HOUR_USD"),
    ],
)
def test_what_no_run_can_have_is_refused_before_ray_is_started(flags: tuple[str, ...], message: str) -> None:
    with pytest.raises(UsageError) as caught:
        planned(*flags)
    assert message in str(caught.value)
    assert caught.value.exit_code == 2


def test_a_node_costs_its_way_of_buying_or_what_the_variable_says(monkeypatch: pytest.MonkeyPatch) -> None:
    prices = {"gpu_node_hour_usd": "51.40", "gpu_queue_node_hour_usd": "42.40", "ray_cluster_name": "oasis"}
    gpus = cluster(**prices, gpus_per_node=8)

    def price(of: ClusterEnvironment) -> float | None:
        return planned("--max-usd", "5", place=session.Place(address="h", environment=of)).node_hour_usd

    assert price(gpus) == 51.40
    assert price(dataclasses.replace(gpus, ray_cluster_name="", ray_namespace="vision")) == 42.40, "a team's queue"
    monkeypatch.setenv("OASIS_SUBMITTED_WITH", "--stack dev --queue --nodes 2")
    assert price(gpus) == 42.40
    monkeypatch.setenv("OASIS_NODE_HOUR_USD", "30.5")
    assert price(gpus) == price(cluster()) == 30.5
    monkeypatch.setenv("OASIS_NODE_HOUR_USD", "free")
    with pytest.raises(
        UsageError, match="the variable OASIS_NODE_HOUR_USD is 'free'; it must be USD an hour, more than 0"
    ):
        price(gpus)


def test_in_pods_that_are_older_than_the_prices_nothing_is_missing_but_the_price(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in dataclasses.asdict(cluster(gpus_per_node=8)).items():
        if not name.endswith("_usd"):
            monkeypatch.setenv(f"OASIS_{name.upper()}", str(value))
    place = session.Place(address="h", environment=ClusterEnvironment.from_env())
    assert planned(place=place).node_hour_usd is None
    with pytest.raises(UsageError, match="what an hour of a node costs here is not known"):
        planned("--max-usd", "5", place=place)


@pytest.mark.parametrize(
    ("listening", "said", "remedy"),
    [
        (None, "The embedded Ray did not start: The current node timed out.", "with less running beside it"),
        (True, "No Ray answers at {}: The current node timed out.", "leave --address out"),
        (False, "No Ray answers at {}: [Errno 111] Connection refused.", "leave --address out"),
    ],
)
def test_a_ray_that_is_not_up_in_time_is_told_in_one_message(
    monkeypatch: pytest.MonkeyPatch, listening: bool | None, said: str, remedy: str
) -> None:
    def slow(**_options: object) -> None:
        raise Exception("The current node timed out.\nMore of it.")  # ray 2.60, _private/node.py: raised as it is here

    monkeypatch.setattr("ray.init", slow)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = None if listening is None else f"127.0.0.1:{listener.getsockname()[1]}"
        if not listening:
            listener.close()
        with pytest.raises(PlaceError) as caught, session.connect(session.Place(address=address, environment=None)):
            pass
    assert caught.value.problem == said.format(address)
    assert remedy in caught.value.remedy


def test_a_ray_of_its_own_that_a_busy_machine_starts_too_late_is_ended_and_started_once_more(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    servers: list[subprocess.Popen[bytes]] = []

    def late(**_options: object) -> None:
        assert all(server.poll() is not None for server in servers)
        servers.append(services.ConsolePopen(["sleep", "600"]))
        if len(servers) == 1:
            raise Exception("The current node timed out during startup. This could")  # ray 2.60, _private/node.py

    monkeypatch.setattr("ray.init", late)
    with session.connect(LAPTOP):
        servers[1].kill()
    assert len(servers) == 2
    assert "Ray was not up within the 30 s that it gives itself; starting it once more" in capsys.readouterr().out


def test_a_ray_of_its_own_starts_however_long_the_name_of_the_folder_for_temporary_files_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (macos := tmp_path / "zyxvpxvq6csfxvn_n0000000000000" / "T").mkdir(parents=True)
    monkeypatch.setattr(tempfile, "tempdir", str(macos))
    asked: list[str] = []
    monkeypatch.setattr("ray.init", lambda **options: asked.append(options["_temp_dir"]))
    with session.connect(LAPTOP):
        assert Path(asked[0]).is_dir()
    assert not Path(asked[0]).exists()
    validate_socket_filepath(f"{asked[0]}/session_2026-11-30_22-07-19_576554_4194304/sockets/plasma_store")


def test_a_data_name_is_below_the_mount_and_a_path_is_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OASIS_DATA_MOUNT", raising=False)
    assert str(location.data_folder("digits")) == f"{DATA_MOUNT}/digits"
    monkeypatch.setenv("OASIS_DATA_MOUNT", "/mnt/elsewhere")
    assert str(location.data_folder("digits")) == "/mnt/elsewhere/digits"
    assert str(location.data_folder("/srv/digits")) == "/srv/digits"
    assert location.data_folder("synthetic") is None


@pytest.fixture
def laptop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nothing_set: None) -> Path:
    """A place without a stack and without Ray, in which an embedded Ray is never reached."""

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("Ray was started")

    monkeypatch.setattr(session, "connect", refuse)
    monkeypatch.setattr(session, "prepare", lambda address: session.Place(address=address, environment=None))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_data_that_only_the_workers_can_see_is_left_to_their_verdict(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = f"{tmp_path}/scratch/imagenet"
    assert location.check_data(elsewhere, here=False) == (
        f"{elsewhere} cannot be seen from here; the workers will say whether it exists"
    )
    monkeypatch.setenv("OASIS_DATA_MOUNT", str(tmp_path))  # a mount that this machine has shows what is not in it
    with pytest.raises(UsageError, match="does not exist"):
        location.check_data("imagenet", here=False)


def test_data_that_cannot_be_looked_at_is_a_verdict_and_digits_are_written_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # To root no folder is closed: a name that no disk has fails like another user's folder, or a mount that is gone.
    closed = tmp_path / ("x" * 300)
    with pytest.raises(PlaceError, match="cannot list"):
        location.check_data(str(closed), here=True)
    with pytest.raises(PlaceError, match="File name too long"):
        stores(closed)
    monkeypatch.setenv("OASIS_DATA_MOUNT", str(closed))
    monkeypatch.chdir(tmp_path)
    assert location.digits_mount() == tmp_path / ".oasis" / "data"


@pytest.mark.parametrize("command", [["train"], ["sweep", "--space", "space.yaml"]])
def test_a_second_driver_with_a_ray_of_its_own_is_refused_before_it_starts_one(
    laptop: Path, cli: CommandLine, command: list[str]
) -> None:
    (laptop / "space.yaml").write_text("seed: [1, 2]")
    words = [*command, "--run", "both", "--data", "synthetic", "--wandb", "off"]
    with run_lock.hold_here(locate(laptop / ".oasis/runs/both").uri, "both"):
        assert "run both is being trained by another command on this machine" in cli(*words, code=2).err
    with pytest.raises(AssertionError, match="Ray was started"):
        main(words)


def test_a_key_that_is_demanded_and_missing_is_refused_before_anything_is_written_or_started(
    laptop: Path, cli: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    for demand in (["--wandb-key-file", "none"], ["--wandb", "online"]):
        assert "handwritten" not in cli("train", *demand, code=7).out
        assert list(laptop.iterdir()) == []
    (laptop / "space.yaml").write_text("seed: [1, 2]")
    words = ["sweep", "--space", "space.yaml", "--run", "both", "--data", "synthetic", "--wandb", "online"]
    assert "there is no W&B key" in cli(*words, code=7).err


@pytest.mark.thorough
def test_a_driver_on_another_cluster_is_refused_and_one_that_was_killed_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_beat, "BEAT_SECONDS", 0.2)
    folder, said = locate(tmp_path / "a"), list[str]()
    with run_beat.keep(folder, "a", "first", said.append):
        eventually(lambda: run_beat.BEAT in folder.files())
        with pytest.raises(UsageError, match="run a is being trained elsewhere, by attempt first, which last wrote"):
            run_beat.keep(folder, "a", "second", said.append).__enter__()
        killed = json.loads(folder.read(run_beat.BEAT))
    assert folder.files() == []
    monkeypatch.setattr(run_beat, "SILENCE_SECONDS", 4.0)
    # It is looked at as one of this moment, however long a busy machine takes until then.
    folder.write(run_beat.BEAT, json.dumps({**killed, "time": time.time() + 3600}).encode())
    with run_beat.keep(folder, "a", "third", said.append):
        eventually(lambda: b"third" in folder.read(run_beat.BEAT))
    assert ["attempt first of run a was there a moment ago" in line for line in said] == [True, True]


def test_a_driver_on_a_cluster_looks_for_others_before_it_reaches_ray(
    laptop: Path, monkeypatch: pytest.MonkeyPatch, cli: CommandLine
) -> None:
    monkeypatch.setattr(session, "prepare", lambda _: session.Place(address="h", environment=None))
    monkeypatch.setattr(run_beat, "BEAT_SECONDS", 0.2)
    folder = locate(laptop / "runs/a")
    with run_beat.keep(folder, "a", "first", print):
        eventually(lambda: run_beat.BEAT in folder.files())
        words = ["train", "--run", "a", "--storage", "runs", "--data", "synthetic", "--wandb", "off"]
        assert "run a is being trained elsewhere, by attempt first" in cli(*words, code=2).err


def test_a_driver_with_a_ray_of_its_own_looks_for_others_where_its_runs_are_in_a_bucket(
    laptop: Path, monkeypatch: pytest.MonkeyPatch, cli: CommandLine
) -> None:
    bucket = Folder("gs://bucket/runs", LocalFileSystem(), str(laptop / "runs"))
    monkeypatch.setattr(train, "locate", lambda _: bucket)
    monkeypatch.setattr(run_beat, "BEAT_SECONDS", 0.2)
    with run_beat.keep(bucket.child("a"), "a", "first", print):
        eventually(lambda: run_beat.BEAT in bucket.child("a").files())
        words = ["train", "--run", "a", "--storage", "gs://bucket/runs", "--data", "synthetic", "--wandb", "off"]
        assert "run a is being trained elsewhere, by attempt first" in cli(*words, code=2).err


def test_another_s_run_and_a_complete_one_are_answered_from_the_folder_before_ray_starts(
    laptop: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = train.configuration.from_recipe("digits_laptop", data="synthetic", epochs=2)
    folder = locate(laptop / ".oasis/runs/a")
    store = CheckpointStore(folder.child("checkpoints"), 2)

    def again(*flags: str) -> int:
        capsys.readouterr()
        return main(["train", "--run", "a", "--data", "synthetic", "--wandb", "off", *flags])

    def saved(step: int, epoch: int) -> str:
        return store.save({}, step, config.identity, {"epoch": epoch, "config": config.to_dict()}).name

    saved(10, 1)
    for flags in (("--model", "tiny"), ("--seed", "1"), ("--set", "ema_decay=0")):
        assert again(*flags) == 2
        assert "belong to another run" in capsys.readouterr().err
    with pytest.raises(AssertionError, match="Ray was started"):
        again("--epochs", "2")
    assert "until now" not in capsys.readouterr().out
    with pytest.raises(AssertionError, match="Ray was started"):
        again("--epochs", "3", "--learning-rate", "0.001")
    changed = "changed in this run: epochs 3, was 2 until now; learning_rate 0.001, was 0.004 until now\n"
    assert changed in capsys.readouterr().out
    assert again("--learning-rate", "0.001", "--epochs", "3", "--dry-run") == 0
    assert changed in capsys.readouterr().out
    newest = saved(20, 2)
    with pytest.raises(AssertionError, match="Ray was started"):  # no end has been written down
        again("--epochs", "2")
    summary = {"run": "a", "model": "nano", "data": "synthetic", "steps": 20, "val/accuracy": 0.5, "val/images": 9}
    folder.child("results").write("summary.json", json.dumps(summary).encode())
    assert again("--epochs", "2") == 0
    said = capsys.readouterr().out
    assert "all epochs (2) of run a are complete; raise --epochs to train on" in said
    assert "run a is complete: validation accuracy 50.00% on 9 images after 20 steps" in said
    assert (laptop / ".oasis/results/a/curve.png").exists()
    assert again("--epochs", "2", "--learning-rate", "0.001") == 0
    unused = "the run is complete, so these changes have no effect: learning_rate 0.001, was 0.004 until now\n"
    assert unused in capsys.readouterr().out
    torn = folder.child("checkpoints", newest.replace("20", "30"))
    for file in (manifest.MANIFEST, manifest.COMMIT):
        torn.write(file, b"torn")
    assert manifest.committed(folder.child("checkpoints").files())[-1] in torn.uri
    assert again("--epochs", "2") == 0  # by the newest that reads
    torn.remove()
    with mock.patch.object(manifest, "SCHEMA", 3):
        manifest.commit(torn, {})
    assert again("--epochs", "2") == 6
    assert "has schema 3, this program reads 2" in capsys.readouterr().err
    torn.remove()
    with pytest.raises(AssertionError, match="Ray was started"):
        again("--epochs", "3")
    folder.child("checkpoints", newest).write(checkpoint_state.STRUCTURE, b"rot")
    with pytest.raises(AssertionError, match="Ray was started"):  # the workers pass it over, and train on
        again("--epochs", "2")


@pytest.mark.thorough
def test_what_runs_beside_the_workers_imports_no_torch() -> None:
    # Half a gigabyte for each of them: driver, Ray Train's controller, lock.
    modules = "convnext.run.driver", "convnext.run.trainer", "cluster.run_lock", "convnext.run.train_group"
    script = f"import sys; {'; '.join(f'import workloads.{name}' for name in modules)}"
    script += "; print(sorted(set(sys.modules) & {'torch', 'torchvision'}))"
    done = python("-c", script, check=True, timeout=60)
    assert done.stdout.strip() == "[]"


def test_the_environment_is_as_before_when_a_run_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_TRAIN_HEALTH_CHECK_INTERVAL_S", "7")
    monkeypatch.delenv("RAY_TRAIN_COLLECTIVE_TIMEOUT_S", raising=False)
    before = dict(os.environ)
    with driver._settings(dataclasses.replace(planned(), collective_timeout=5)):
        assert os.environ["RAY_TRAIN_COLLECTIVE_TIMEOUT_S"] == "5"
        assert os.environ["RAY_TRAIN_HEALTH_CHECK_INTERVAL_S"] == "7"
    assert dict(os.environ) == before


def test_a_run_may_fail_as_often_as_it_gets_on(tmp_path: Path) -> None:
    folder = locate(tmp_path)
    retries = trainer.Retries(folder, tmp_path / "journal")
    lost = WorkerGroupError("lost", {0: RuntimeError("killed")})

    def reached(step: int) -> None:
        manifest.commit(folder.child(manifest.new_name(step)), {"step": step, "files": {}})

    for step in range(2, 14, 2):
        reached(step)
        assert [retries.make_decision(lost) for _ in range(trainer.FAILURES)] == [FailureDecision.RETRY] * 3
    assert retries.make_decision(lost) == FailureDecision.RAISE

    retries = trainer.Retries(folder, tmp_path / "journal")
    decisions = []
    for step in (20, 21, 21, 22):  # no more than every start saves: a new checkpoint each time, and no progress
        reached(step)
        decisions.append(retries.make_decision(lost))
    assert decisions == [FailureDecision.RETRY] * 3 + [FailureDecision.RAISE]


def test_a_run_may_fail_to_start_three_times_in_a_row(tmp_path: Path) -> None:
    folder = locate(tmp_path)
    journal = tmp_path / "journal"
    retries = trainer.Retries(folder, journal)
    late = ControllerError(WorkerGroupStartupTimeoutError(2))
    assert [retries.make_decision(late) for _ in range(3)] == [FailureDecision.RETRY] * 3
    manifest.commit(folder.child(manifest.new_name(2)), {"step": 2, "files": {}})
    decisions = [retries.make_decision(late) for _ in range(4)]
    assert decisions == [FailureDecision.RETRY] * 3 + [FailureDecision.RAISE]
    bug = ControllerError(RuntimeError("a bug"))
    assert trainer.Retries(folder, journal).make_decision(bug) == FailureDecision.RAISE
    lost = ControllerError(RayActorError())  # by its node, between the ranks' meeting and the begin of their work
    assert trainer.Retries(folder, journal).make_decision(lost) == FailureDecision.RETRY
    assert journal.read_text().count("the workers are started once more: ") == 7


def test_the_copy_of_the_data_is_part_of_what_a_start_costs(tmp_path: Path) -> None:
    before = time.time()
    train_group._prepare("synthetic")
    stay, _ = worker._stay({}, locate(tmp_path), {"a node"}, time.time() + 60, rank=1)
    assert before <= stay["began"] < before + 60


@pytest.mark.parametrize(
    ("limit", "end", "said"),
    [
        (
            661,
            RayTaskError("_join", "Traceback ...", ConnectionError("Connection was likely closed")),
            "did not meet: Connection was likely closed; no answer from rank 1 on b$",
        ),
        (661, GetTimeoutError("Get timed out"), "did not meet within 661 s; no answer from rank 1 on b$"),
        (1800, GetTimeoutError("Get timed out"), "listed the data within 1800 s; no answer from rank 1 on b$"),
    ],
)
def test_ranks_that_do_not_meet_are_started_once_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: float, end: Exception, said: str
) -> None:
    def get(_: object, timeout: float | None = None) -> None:  # Ray's own would start a Ray
        if timeout == limit:
            raise end

    class Group(list[object]):
        """A worker group of two ranks, on hosts of these names."""

        def get_workers(self) -> list[SimpleNamespace]:
            return [SimpleNamespace(metadata=SimpleNamespace(hostname=name)) for name in self]

        def execute_async(self, *_: object) -> list[object]:
            return [object() for _ in self]

        def execute_single(self, *_: object) -> tuple[str, int]:
            return "127.0.0.1", 1

        def execute_single_async(self, *_: object) -> object:
            return object()

    monkeypatch.setattr("ray.get", get)
    monkeypatch.setattr("ray.wait", lambda questions, **_: (questions[:1], questions[1:]))
    meeting, group = train_group.ProcessGroup(timeout_seconds=601, data="synthetic"), cast(Any, Group("ab"))
    with pytest.raises(WorkerGroupStartupFailedError, match=said) as caught:
        meeting.backend_cls().on_start(group, meeting)
    retries = trainer.Retries(locate(tmp_path), tmp_path / "journal")
    assert retries.make_decision(ControllerError(caught.value)) == FailureDecision.RETRY


def test_the_end_of_a_nodes_run_duration_is_reckoned_from_its_start(tmp_path: Path) -> None:
    uptime = tmp_path / "uptime"
    uptime.write_text("1000.50 7.25\n")
    assert end_of_node.run_until({}, uptime) is None
    assert end_of_node.run_until({"OASIS_MAX_RUN_SECONDS": "0"}, uptime) is None
    ends = end_of_node.run_until({"OASIS_MAX_RUN_SECONDS": "604800"}, uptime)
    assert ends is not None
    assert abs(ends - (time.time() + 604800 - 1000.5)) < 5
