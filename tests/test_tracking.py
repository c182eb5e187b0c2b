"""The journal and its readers: nothing is lost, and no reader can hold up a run."""

from __future__ import annotations

import io
import json
import queue
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import wandb as wandb_library

from workloads import credentials, progress, tracking
from workloads.errors import AuthError
from workloads.tracking import Follower, Journal, Wandb, merge, parse, wandb_reader

CANARY = "c0ffee" * 6 + "cafe"
"""A key as long as W&B's own, 40 digits, that stands nowhere else."""


def step(number: int, **values: Any) -> dict[str, Any]:
    record = {"event": "step", "step": number, "epoch": number / 10, "epochs": 4, "eta_seconds": 75.0}
    return {
        **record,
        "train/loss": 1.0,
        "train/accuracy": 0.5,
        "train/images_per_second": 1234.5,
        "learning_rate": 0.1,
        **values,
    }


@pytest.fixture
def drains(monkeypatch: pytest.MonkeyPatch) -> queue.Queue[None]:
    """One item for each time that a follower has read what there was."""
    done: queue.Queue[None] = queue.Queue()
    drain = Follower._drain

    def counted(follower: Follower) -> None:
        drain(follower)
        done.put(None)

    monkeypatch.setattr(Follower, "_drain", counted)
    monkeypatch.setattr(tracking, "POLL_SECONDS", 0.01)
    return done


def test_a_follower_reads_every_record_once_in_order_also_one_that_is_still_being_written(
    tmp_path: Path, drains: queue.Queue[None]
) -> None:
    path = tmp_path / "journal" / "a.jsonl"
    seen: list[int] = []
    finished: list[bool] = []
    follower = Follower(path, lambda record: seen.append(record["step"]), lambda: finished.append(True), "test")
    journal = Journal(path)
    journal.append([step(1), step(2)])
    line = json.dumps(step(3)) + "\n"
    with path.open("a") as stream:
        stream.write(line[:20])
        stream.flush()
        earlier = drains.qsize()
        for _ in range(earlier + 2):  # of two more the second began after the write
            drains.get(timeout=20)
        assert seen == [1, 2]
        stream.write(line[20:])
    journal.append([step(4)])
    assert follower.close() == ""
    assert (seen, finished) == ([1, 2, 3, 4], [True])


def test_a_reader_that_hangs_or_fails_is_left_behind_with_a_word(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "a.jsonl")
    journal.append([step(1)])
    release = threading.Event()

    def hang(_: Any) -> None:
        release.wait(20)

    def fail(_: Any) -> None:
        raise ConnectionError("no route")

    hanging = Follower(journal.path, hang, lambda: None, "W&B")
    failing = Follower(journal.path, fail, lambda: None, "W&B")
    began = time.monotonic()
    assert hanging.close(0.3) == f"W&B did not finish within 0 s; the metrics are in {journal.path}."
    assert failing.close(5) == f"W&B failed (no route); the metrics are in {journal.path}."
    assert time.monotonic() - began < 3
    release.set()


def test_one_history_is_made_of_all_attempts_and_a_torn_last_line_is_left_out() -> None:
    first = [step(1), step(2), step(3, event="epoch"), step(3)]
    second = [step(3, event="epoch", **{"train/loss": 0.7}), {"event": "note", "text": "resumed"}, step(4)]
    torn = "".join(json.dumps(record) + "\n" for record in first) + '{"event": "st'
    history = merge([*parse(torn), *second])
    assert [(record["step"], record["event"]) for record in history] == [
        (1, "step"),
        (2, "step"),
        (3, "step"),
        (3, "epoch"),
        (4, "step"),
    ]
    assert history[3]["train/loss"] == 0.7


def test_wandb_offline_writes_one_run_and_the_key_nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_ERROR_REPORTING", "false")
    journal = Journal(tmp_path / "a.jsonl")
    begun: list[Any] = []
    init = wandb_library.init

    def offline(**arguments: Any) -> Any:
        # With the key, and yet without W&B's servers.
        begun.append(arguments["settings"].api_key)
        arguments["settings"].mode = "offline"
        return init(**arguments)

    monkeypatch.setattr(wandb_library, "init", offline)
    key = credentials.Key(value=CANARY, source="a test")
    wandb = Wandb("digits-1", {"model": "nano"}, tmp_path / "wandb", key)
    follower = Follower(journal.path, wandb.read, wandb.finish, "W&B")
    journal.append([{"event": "note", "text": "begin"}, step(10), step(20)])
    assert follower.close(60) == ""
    assert [path.name.rsplit("-", 2)[-2:] for path in (tmp_path / "wandb").glob("**/*.wandb")] == [
        ["digits", "1.wandb"]
    ]
    assert begun == [CANARY]
    written = [path for path in tmp_path.rglob("*") if path.is_file() and not path.is_symlink()]
    assert len(written) > 2
    assert not [path for path in written if CANARY.encode() in path.read_bytes()]


def test_modes_decide_by_the_key_and_say_what_they_decided(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(credentials.KEY_VARIABLE, raising=False)
    said: list[str] = []

    def reader(mode: Any, key_file: Path | None = None) -> Wandb | None:
        return wandb_reader(mode, "r", {}, tmp_path, key_file, "", said.append)

    assert reader("off") is None
    assert said == []
    assert reader("auto") is None
    assert said.pop() == "W&B is off: there is no key in a file, the environment or Secret Manager."
    assert reader("offline") is not None
    assert said.pop() == f"W&B is offline, in {tmp_path}."
    with pytest.raises(AuthError, match="there is no W&B key") as caught:
        reader("online")
    assert caught.value.exit_code == 7
    (tmp_path / "key").write_text(CANARY)
    online = reader("auto", tmp_path / "key")
    assert online is not None and CANARY not in repr(vars(online))
    assert said.pop() == f"W&B is online, with the key from file {tmp_path / 'key'}."
    assert reader("auto", tmp_path / "none") is None
    assert said.pop().startswith("W&B is off: the key file")
    assert said == []


def test_records_are_lines_for_people_or_json_that_reads_back(monkeypatch: pytest.MonkeyPatch) -> None:
    record = step(30)
    line = progress.text(record)
    assert line == "epoch   3.00/4  step     30  loss 1.0000  accuracy 50.00%  1,234 images/s  1:15 left"
    monkeypatch.setenv(progress.FORM_VARIABLE, "json")
    stream = io.StringIO()
    progress.emit(record, stream)
    assert progress.parse(stream.getvalue()) == record
    for other in ("loss: 3", "{torn", '{"event": 3}', "[]"):
        assert progress.parse(other) is None


def test_lines_of_steps_are_paced_and_all_others_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    paced = progress.Paced()
    for number in range(20):
        paced.emit(step(number))
    paced.emit({"event": "note", "text": "done"})
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[:2] for line in lines] == [["epoch", "0.00/4"], ["done"]]
