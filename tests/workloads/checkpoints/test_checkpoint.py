"""Checkpoints: what is committed loads, what is not or no longer whole is passed over, on disk and on Cloud Storage."""

from __future__ import annotations

import errno
import gc
import itertools
import math
import os
import pickle
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import fs

from benchmarks.checkpoint_trials import faults as checkpoint_faults
from benchmarks.checkpoint_trials import kills as checkpoint_kills
from tests.emulator.google import served
from tests.support import loopback
from tests.support.loopback import Reply, Request
from tests.support.storage_places import storage_place
from tests.support.waiting import eventually
from workloads.checkpoints import manifest
from workloads.checkpoints import state as checkpoint_state
from workloads.checkpoints.manifest import COMMIT, MANIFEST
from workloads.checkpoints.state import STRUCTURE
from workloads.checkpoints.store import Checkpoint, CheckpointStore
from workloads.errors import AuthError, DataIntegrityError, PlaceError, UsageError
from workloads.storage import disk
from workloads.storage.folders import EMULATOR_VARIABLE, Folder, locate

SHARD = "shard-000.pt"
IDENTITY = {"model": "nano", "classes": ["a", "b"]}


def state(step: int, size: int = 1000) -> dict[str, Any]:
    return {"weights": torch.full((size,), float(step)), "position": {"step": step}}


@pytest.fixture(params=["local", "gs"])
def runs(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Folder]:
    """A folder for runs on either kind of storage."""
    with storage_place(request.param, tmp_path, monkeypatch) as folder:
        yield folder


def newest(store: CheckpointStore) -> tuple[int, list[str]]:
    said: list[str] = []
    found = store.newest(IDENTITY, said.append)
    assert found is not None
    assert float(found.state["weights"][0]) == found.manifest["step"]
    return found.manifest["step"], said


def test_the_newest_comes_back_as_it_was_saved_and_older_ones_go(runs: Folder) -> None:
    store = CheckpointStore(runs.child("a", "checkpoints"), keep=2)
    assert store.newest(IDENTITY, print) is None
    for step in (5, 90, 100):
        store.save(state(step), step, IDENTITY, {"world_size": 2})
    assert newest(store) == (100, [])
    assert [name[:9] for name in store.committed()] == ["000000090", "000000100"]
    assert [name.rsplit("/")[-1] for name in runs.files()] == [COMMIT, MANIFEST, SHARD, STRUCTURE] * 2


@pytest.mark.thorough
@pytest.mark.parametrize("damage", ["flipped", "short", "missing", "manifest", "no-commit"])
def test_a_damaged_newest_is_passed_over_and_said_and_stays_until_a_run_has_newer_ones(
    runs: Folder, damage: str
) -> None:
    folder = runs.child("checkpoints")
    store = CheckpointStore(folder, keep=2)
    for step in (1, 2):
        store.save(state(step), step, IDENTITY, {})
    store = CheckpointStore(folder, keep=2)
    torn = folder.child(store.committed()[-1])
    content = torn.read(SHARD)
    match damage:
        case "flipped":
            torn.write(SHARD, content[:900] + bytes([content[900] ^ 1]) + content[901:])
        case "short":
            torn.write(SHARD, content[:-1])
        case "manifest":
            torn.write(MANIFEST, torn.read(MANIFEST).replace(b'"step": 2', b'"step": 3'))
        case "missing":
            torn.filesystem.delete_file(f"{torn.path}/{SHARD}")
        case _:
            torn.filesystem.delete_file(f"{torn.path}/{COMMIT}")
    step, said = newest(store)
    assert step == 1
    assert len(said) == (0 if damage == "no-commit" else 1)
    store.collect()
    assert [manifest.step_of(name) for name in folder.names()] == ([1] if damage == "no-commit" else [1, 2])
    for step in (3, 4):
        store.save(state(step), step, IDENTITY, {})
    assert [manifest.step_of(name) for name in folder.names()] == [3, 4]


def test_a_run_does_not_go_on_over_a_checkpoint_of_another_schema(tmp_path: Path) -> None:
    store = CheckpointStore(locate(tmp_path), keep=2)
    store.save(state(1), 1, IDENTITY, {})
    with mock.patch.object(manifest, "SCHEMA", 3):
        newer = store.write(state(2), 2, IDENTITY, {}, threading.Event()).name
    with pytest.raises(manifest.OtherSchemaError, match=f"{newer} has schema 3, this program reads 2. Use the version"):
        store.newest(IDENTITY, print)


def test_a_checkpoint_of_another_model_or_other_classes_is_kept_and_refused_by_what_differs(tmp_path: Path) -> None:
    classes = [f"n{number:08d}" for number in range(1000)]
    store = CheckpointStore(locate(tmp_path), keep=2)
    store.save(state(1), 1, {**IDENTITY, "classes": classes}, {})
    same = "999 that are the same"
    said = rf"classes is \['bee'\] and {same}, the checkpoint's is \['n00000000'\] and {same}\. Choose"
    with pytest.raises(UsageError, match=said):
        store.newest({**IDENTITY, "classes": ["bee", *classes[1:]]}, print)
    said = r"classes is \['n00000001', 'n00000000'\] and 998 that are the same, the checkpoint's is \['n00000000', "
    with pytest.raises(UsageError, match=said):
        store.newest({**IDENTITY, "classes": [classes[1], classes[0], *classes[2:]]}, print)
    with pytest.raises(UsageError, match=r"classes is \['bee', 'cow'\], the checkpoint's is .*, \.\.\.\]\. Choose"):
        store.newest({**IDENTITY, "classes": ["bee", "cow"]}, print)
    with pytest.raises(UsageError, match="model is 'tiny', the checkpoint's is 'nano'"):
        store.newest({**IDENTITY, "classes": classes, "model": "tiny"}, print)
    assert len(store.committed()) == 1


def test_a_checkpoint_runs_no_code_when_it_is_loaded(tmp_path: Path) -> None:
    class Trap:
        def __reduce__(self) -> tuple[Any, ...]:
            return (os.mkdir, (str(tmp_path / "trapped"),))

    store = CheckpointStore(locate(tmp_path / "runs"), keep=2)
    store.save({"weights": Trap()}, 1, IDENTITY, {})
    with pytest.raises(DataIntegrityError):
        store.newest(IDENTITY, lambda _: None)
    assert not (tmp_path / "trapped").exists()


def test_of_several_checkpoints_at_one_step_the_last_is_the_newest(tmp_path: Path) -> None:
    """As an evaluation has them, and the end of a run after its last one."""
    store = CheckpointStore(locate(tmp_path / "runs"), keep=3)
    for number in range(8):
        store.save({"number": number}, 5, IDENTITY, {})

        found = store.newest(IDENTITY, lambda _: None)

        assert found is not None and found.state == {"number": number}


@pytest.mark.thorough
@pytest.mark.parametrize("variant", checkpoint_kills.VARIANTS)
def test_a_kill_at_any_instant_leaves_a_newest_that_loads_where_common_ways_to_save_do_not(
    tmp_path: Path, variant: str
) -> None:
    # On until a kill has fallen into a save: otherwise nothing was tried.
    found: Counter[str] = Counter()
    tried = "orphans" if variant == "ours" else "unloadable"
    for round_ in range(10):
        for counts in checkpoint_kills.run(variant, 4, tmp_path / str(round_), lanes=2, seed=round_):
            found.update(counts)
        if found[tried]:
            break
    assert found[tried]
    if variant == "ours":
        assert [found[name] for name in ("unloadable", "wrong", "lost", "uncollected")] == [0] * 4


def test_ctrl_c_during_the_kills_leaves_no_writer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would write on into a folder that is being removed."""
    killed: list[Path] = []

    def trial(context: object, variant: str, folder: Path, *_: object) -> Counter[str]:
        time.sleep(0.2)  # the main thread waits by then
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.5)
        killed.append(folder)
        return Counter(trials=1)

    monkeypatch.setattr(checkpoint_kills, "trial", trial)
    with pytest.raises(KeyboardInterrupt):
        list(checkpoint_kills.run("ours", 1, tmp_path, lanes=1, seed=0))
    assert killed == [tmp_path / "lane-0"]


@pytest.mark.thorough
@pytest.mark.parametrize("lasting", [False, True])
@pytest.mark.parametrize("place", checkpoint_faults.PLACES)
def test_whichever_call_of_a_save_fails_a_valid_newest_remains_and_the_next_save_succeeds(
    place: str, lasting: bool
) -> None:
    # Every call is tried by `python -m benchmarks.checkpoints faults`; here one in seven, with each error in turn.
    errors = itertools.cycle(checkpoint_faults.ERRORS)
    at = 1
    while (outcome := checkpoint_faults.strike(place, at, next(errors), lasting)).struck:
        assert outcome.valid
        assert outcome.saves_again
        assert outcome.raised or not lasting
        assert outcome.seconds < checkpoint_faults.HANG_SECONDS
        at += 7
    assert at > 50


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (errno.ENOSPC, "runs gc"),
        (errno.EROFS, "Mount it for writing"),
        (errno.ENOTCONN, "The mount is gone"),
        (errno.EIO, "Check the address"),
    ],
)
def test_a_disk_that_takes_nothing_is_named_and_loses_nothing(tmp_path: Path, error: int, said: str) -> None:
    store = CheckpointStore(locate(tmp_path / "storage.1"), keep=2)  # a name that is no reason of Google's
    store.save(state(1), 1, IDENTITY, {})
    with (
        mock.patch.object(
            disk, "calls", checkpoint_faults.FaultyCalls(checkpoint_faults.PlannedFailure(1, error, lasting=True))
        ),
        pytest.raises(PlaceError, match=os.strerror(error)) as caught,
    ):
        store.save(state(2), 2, IDENTITY, {})
    assert caught.value.exit_code == 8
    assert said in caught.value.remedy
    assert newest(store) == (1, [])


def test_a_folder_of_another_user_is_a_matter_of_its_mode_and_not_of_a_role_at_google(tmp_path: Path) -> None:
    refused = checkpoint_faults.PlannedFailure(1, errno.EACCES, lasting=True)
    with (
        mock.patch.object(disk, "calls", checkpoint_faults.FaultyCalls(refused)),
        pytest.raises(AuthError, match="Permission denied") as caught,
    ):
        locate(tmp_path).write("notes", b"mine")
    assert "owner and mode" in caught.value.remedy and "storage.objectUser" not in caught.value.remedy


def test_a_full_disk_gets_back_what_a_failed_save_had_taken(tmp_path: Path) -> None:
    store = CheckpointStore(locate(tmp_path), keep=2)
    store.save(state(1), 1, IDENTITY, {})
    full = checkpoint_faults.PlannedFailure(12, errno.ENOSPC, lasting=False)
    with mock.patch.object(disk, "calls", checkpoint_faults.FaultyCalls(full)), pytest.raises(PlaceError):
        store.save(state(2), 2, IDENTITY, {})
    assert [entry.name for entry in tmp_path.iterdir()] == store.committed()


@pytest.mark.thorough
def test_an_object_whose_replacement_is_interrupted_is_the_old_or_the_new_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with storage_place("gs", tmp_path, monkeypatch) as folder:
        folder.write("summary.json", b"old")

        def interrupted(path: str, **options: Any) -> Any:
            stream = folder.filesystem.open_output_stream(path, **options)
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
            return stream

        interrupted_at: Any = SimpleNamespace(type_name="gcs", open_output_stream=interrupted)
        with pytest.raises(KeyboardInterrupt):
            Folder(folder.uri, interrupted_at, folder.path).write("summary.json", b"new")
        gc.collect()  # Arrow ends an upload with its stream
        eventually(lambda: folder.read("summary.json") != b"old")
        assert folder.read("summary.json") == b"new"


def test_a_read_only_bucket_is_a_matter_of_permission(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(request: Request) -> Reply:
        if request.method == "GET":
            return 404, {"error": {"code": 404, "message": "No such object"}}
        message = "trainer@p.iam.gserviceaccount.com does not have storage.objects.create access"
        return 403, {"error": {"code": 403, "message": message}}

    with loopback.answering(refuse) as url:
        monkeypatch.setenv(EMULATOR_VARIABLE, url)
        with pytest.raises(AuthError, match=r"storage\.objects\.create") as caught:
            CheckpointStore(locate("gs://runs/a"), keep=2).save(state(1), 1, IDENTITY, {})
    assert caught.value.exit_code == 7
    assert "roles/storage.objectUser" in caught.value.remedy


def test_an_object_that_goes_while_it_is_deleted_is_deleted(monkeypatch: pytest.MonkeyPatch) -> None:
    """By another, or by this client's first try, whose answer was lost on its way."""
    there = {"name": "a/COMMIT", "bucket": "runs", "size": "64", "generation": "1", "updated": "2026-01-01T00:00:00Z"}
    asked = []

    def gone(request: Request) -> Reply:
        asked.append(request.method)
        return (404, {"error": {"code": 404}}) if request.method == "DELETE" else (200, there)

    with loopback.answering(gone) as url:
        monkeypatch.setenv(EMULATOR_VARIABLE, url)
        manifest.withdraw(locate("gs://runs/a"))
    assert asked[-1] == "DELETE"


def test_what_an_older_process_left_half_done_neither_leads_nor_stays(runs: Folder) -> None:
    """The partial folder on which NVIDIA-NeMo/Automodel#3254 hangs, and things that are no checkpoints."""
    folder = runs.child("checkpoints")
    store = CheckpointStore(folder, keep=2)
    store.save(state(1), 1, IDENTITY, {})
    folder.child(manifest.new_name(9)).write("shard-000.pt", b"half of it")
    folder.child("notes").write("why.txt", b"mine")
    assert newest(store) == (1, [])
    assert len(store.collect()) == 1
    assert folder.names() == [*store.committed(), "notes"]


def test_only_checkpoints_that_verify_count_as_kept(tmp_path: Path) -> None:
    folder = locate(tmp_path)
    first = CheckpointStore(folder, keep=9)
    names = [first.save(state(step), step, IDENTITY, {}).name for step in (1, 2, 3)]
    folder.child(names[1]).write("structure.pt", b"rot")
    second = CheckpointStore(folder, keep=3)
    names.append(second.save(state(4), 4, IDENTITY, {}).name)
    assert second.committed() == names
    names.append(second.save(state(5), 5, IDENTITY, {}).name)
    assert second.committed() == names[2:]


def test_a_deletion_that_is_cut_short_leaves_no_checkpoint(tmp_path: Path) -> None:
    store = CheckpointStore(locate(tmp_path), keep=1)
    store.save(state(1), 1, IDENTITY, {})
    # Every call after COMMIT's own deletion is refused.
    with mock.patch.object(disk, "remove", side_effect=OSError(errno.EIO, "gone")), pytest.raises(PlaceError):
        store.save(state(2), 2, IDENTITY, {})
    assert [manifest.step_of(name) for name in store.committed()] == [2]


def test_a_state_comes_back_in_kind_and_in_several_shards_of_equal_size(
    runs: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoint_state, "SHARD_BYTES", 40_000)
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.BatchNorm2d(8))
    model.to(memory_format=torch.channels_last)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.randn(2, 3, 8, 8)).sum().backward()
    optimizer.step()
    whole = torch.arange(100_000.0)
    original = {
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "parts": (whole[:10_000], [whole[10_000:20_000].bfloat16(), whole[20_000:30_000]], torch.tensor(True)),
        "plain": {"none": None, "text": "x", 3: 1.5},
    }
    store = CheckpointStore(runs, keep=2)
    saved = store.save(original, 1, IDENTITY, {})
    assert saved.size < 250_000  # and not the whole storage that the parts are views of
    found = store.load(saved.name, IDENTITY)
    assert str(found.state) == str(original)
    assert all(
        torch.equal(there, here) and there.stride() == here.stride()
        for there, here in zip(found.state["model"].values(), original["model"].values(), strict=True)
    )
    shards = [facts["bytes"] for name, facts in found.manifest["files"].items() if name.startswith("shard")]
    assert len(shards) == 3
    model.load_state_dict(found.state["model"])
    optimizer.load_state_dict(found.state["optimizer"])


@given(st.lists(st.integers(0, 1000), max_size=200), st.integers(1, 3000))
def test_shards_hold_every_tensor_once_and_are_balanced(sizes: list[int], target: int) -> None:
    shards = checkpoint_state.balance(sizes, target)
    assert sorted(index for shard in shards for index in shard) == list(range(len(sizes)))
    loads = [sum(sizes[index] for index in shard) for shard in shards]
    # As many as the target asks for, but for empty ones, and Graham's bound for the largest-first rule.
    asked = max(1, math.ceil(sum(sizes) / target))
    assert len(shards) <= asked and all(shards)
    assert max(loads, default=0) <= sum(sizes) / asked + max(sizes, default=0)


def test_a_reader_whose_whole_list_was_replaced_meanwhile_looks_again(tmp_path: Path) -> None:
    writer = CheckpointStore(locate(tmp_path), keep=1)
    writer.save(state(1), 1, IDENTITY, {})

    class Overtaken(CheckpointStore):
        def load(self, name: str, identity: Mapping[str, Any]) -> Checkpoint:
            if manifest.step_of(name) == 1:
                writer.save(state(2), 2, IDENTITY, {})
            return super().load(name, identity)

    step, said = newest(Overtaken(locate(tmp_path), keep=1))
    assert step == 2
    assert len(said) == 1


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(PlaceError, match=r"cannot write s\S+\.pt to"):
        CheckpointStore(locate(tmp_path / "file" / "runs"), keep=2).save(state(1), 1, IDENTITY, {})
    with served(tmp_path / "google") as google:
        monkeypatch.setenv(EMULATOR_VARIABLE, f"http://{google.host}")
        with pytest.raises(PlaceError, match="gs://none/run"):
            CheckpointStore(locate("gs://none/run"), keep=2).save(state(1), 1, IDENTITY, {})
    for address in ("s3://bucket/x", "gs:///x"):
        with pytest.raises(UsageError):
            locate(address)


def test_a_local_folder_is_the_same_from_any_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert locate("runs").uri == str(tmp_path / "runs")


def test_a_folder_pickles_so_that_a_worker_can_be_handed_it(runs: Folder) -> None:
    runs.write("name", b"content")
    assert locate(runs.uri) == runs
    again = pickle.loads(pickle.dumps(runs))
    assert again.read("name") == b"content"
    assert isinstance(again.filesystem, fs.FileSystem)
    again.remove()
    assert runs.files() == []
    runs.remove()
