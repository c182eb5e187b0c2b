"""The journal and its readers: nothing is lost, and no reader can hold up a run."""

from __future__ import annotations

import io
import json
import queue
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.support.waiting import eventually
from tests.support.wandb_server import answering, recording, silent
from workloads.convnext.run.report import publish
from workloads.errors import AuthError, PlaceError
from workloads.reporting import credentials, progress, tracking
from workloads.reporting.history import Journal, Segments, history, merge, parse
from workloads.reporting.tracking import JournalFollower, Wandb, wandb_reader
from workloads.reporting.wandb_process import Patience, fresh
from workloads.storage.folders import Folder, locate

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


def resumed(number: int, name: str | None) -> dict[str, Any]:
    return {
        "event": "resumed",
        "step": number,
        "epoch": number / 10,
        "epochs": 4,
        "name": name,
        "world_size": 2,
    }


@pytest.fixture
def drains(monkeypatch: pytest.MonkeyPatch) -> queue.Queue[None]:
    """One item for each time that a follower has read what there was."""
    done: queue.Queue[None] = queue.Queue()
    drain = JournalFollower._drain

    def counted(follower: JournalFollower) -> None:
        drain(follower)
        done.put(None)

    monkeypatch.setattr(JournalFollower, "_drain", counted)
    monkeypatch.setattr(tracking, "POLL_SECONDS", 0.01)
    return done


def test_a_follower_reads_every_record_once_in_order_also_one_that_is_still_being_written(
    tmp_path: Path, drains: queue.Queue[None]
) -> None:
    path = tmp_path / "journal" / "a.jsonl"
    seen: list[int] = []
    finished: list[bool] = []
    follower = JournalFollower(path, lambda record: seen.append(record["step"]), lambda: finished.append(True), "test")
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


def test_what_a_full_disk_did_not_take_of_the_journal_is_written_later_and_said_once(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal" / "a.jsonl")
    journal.append([step(1)])
    journal.path.rename(tmp_path / "earlier")
    journal.path.symlink_to("/dev/full")
    journal.append([step(2)])
    journal.append([step(3)])
    journal.path.unlink()
    (tmp_path / "earlier").rename(journal.path)
    with journal.path.open("a") as stream:
        stream.write('{"event": "st')  # as a disk leaves it that fills up in a write
    journal.append([step(4)])
    journal.append([step(5)])
    told = parse(journal.path.read_text())
    assert [record["step"] for record in told if record["event"] == "step"] == [1, 2, 3, 4, 5]
    (note,) = [record["text"] for record in told if record["event"] == "note"]
    assert note == f"the journal {journal.path} was not written (No space left on device); training went on"


def test_a_reader_that_hangs_or_fails_is_left_behind_with_a_word(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "a.jsonl")
    journal.append([step(1)])
    release = threading.Event()

    def hang(_: Any) -> None:
        release.wait(20)

    def fail(_: Any) -> None:
        raise ConnectionError("no route")

    hanging = JournalFollower(journal.path, hang, lambda: None, "W&B")
    failing = JournalFollower(journal.path, fail, lambda: None, "W&B")
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


def test_what_an_earlier_attempt_did_after_the_step_that_was_resumed_from_does_not_count() -> None:
    lost = [resumed(0, None), *(step(number) for number in (10, 20, 30, 40)), {"event": "epoch", "step": 40}]
    again = [resumed(20, "c-20"), step(25, **{"train/loss": 0.5}), {"event": "note", "text": "no step"}]
    history = merge([*lost, *again])
    assert [(record["event"], record["step"]) for record in history] == [
        ("resumed", 0),
        ("step", 10),
        ("step", 20),
        ("resumed", 20),
        ("step", 25),
    ]


class Recorded:
    """One W&B run at a server, its journal, and what the user was told."""

    def __init__(
        self, folder: Path, url: str, key: str = CANARY, earlier: Sequence[dict[str, Any]] = (), first: int = 1
    ) -> None:
        self.folder, self.said = folder, list[str]()
        self.journal = Journal(folder / "a.jsonl")
        patience = Patience(init_seconds=2, finish_seconds=2, leave_seconds=80)  # a busy machine starts it late
        found = credentials.Key(value=key, source="a test") if key else None
        self.reader = Wandb(
            "digits-1", {"model": "nano"}, folder / "wandb", found, self.said.append, lambda: list(earlier), patience
        )
        with pytest.MonkeyPatch.context() as patch:
            for name, value in {"WANDB_BASE_URL": url, "HOME": str(folder), "WANDB_API_KEY": ""}.items():
                patch.setenv(name, value)
            self.reader.read(step(first))

    def follow(self) -> JournalFollower:
        return JournalFollower(self.journal.path, self.reader.read, self.reader.finish, "W&B")

    def offline_runs(self) -> list[Path]:
        return sorted(self.folder.glob("wandb/wandb/offline-run-*/*.wandb"))

    def holding_the_key(self) -> list[Path]:
        files = [path for path in self.folder.rglob("*") if path.is_file() and not path.is_symlink()]
        assert len(files) > 4
        return [path for path in files if CANARY.encode() in path.read_bytes()]


@pytest.mark.thorough
def test_whatever_the_server_does_the_run_is_recorded_on_disk_and_the_key_is_nowhere(tmp_path: Path) -> None:
    with ExitStack() as stack:
        addresses = {
            "silent": stack.enter_context(silent()),
            "refusing": stack.enter_context(answering(401, {"error": "invalid API key"}))[0],
            "failing": stack.enter_context(answering(500, {}))[0],
        }
        runs = {name: Recorded(tmp_path / name, url) for name, url in addresses.items()}
        runs["no key"] = Recorded(tmp_path / "none", addresses["silent"], key="")
        began = time.monotonic()
        for number in range(2, 40):
            for run in runs.values():
                run.reader.read(step(number, learning_rate=1000.25 + number))
        # The step path's side of it: all records are handed over long before any server could have answered.
        assert time.monotonic() - began < 1
        followers = {name: run.follow() for name, run in runs.items()}
        assert {name: follower.close(90) for name, follower in followers.items()} == dict.fromkeys(runs, "")
    for name, run in runs.items():
        [recorded] = run.offline_runs()
        assert recorded.name == "run-digits-1.wandb"
        content = recorded.read_bytes()
        assert [number for number in range(2, 40) if f"{1000.25 + number}".encode() not in content] == [], name
        if name == "no key":
            assert run.said == []
            continue
        [sentence] = run.said
        assert sentence.startswith("W&B is recorded offline, because the server cannot be used (")
        assert f"`wandb sync {recorded.parent}` sends it later" in sentence
        assert run.holding_the_key() == []
    assert "401" in runs["refusing"].said[0] or "API key" in runs["refusing"].said[0]


@pytest.mark.thorough
def test_a_history_that_cannot_be_read_costs_its_steps_and_no_others(tmp_path: Path) -> None:
    def unreadable() -> list[dict[str, Any]]:
        raise PlaceError("the bucket does not answer.", "Wait.")

    with recording() as (url, runs), pytest.MonkeyPatch.context() as patch:
        patch.setenv("WANDB_BASE_URL", url)
        said: list[str] = []
        key = credentials.Key(value=CANARY, source="a test")
        reader = Wandb("digits-1", {}, tmp_path, key, said.append, unreadable)
        reader.read(step(7))
        reader.finish()
    assert said[0] == "W&B may lack steps from before this start: the bucket does not answer. Wait."
    assert [line["_step"] for line in runs.history] == [7]


def test_a_wandb_process_that_dies_is_a_sentence_and_not_a_failure(tmp_path: Path) -> None:
    with silent() as url:
        run = Recorded(tmp_path, url)
        process = run.reader._process
        assert process is not None
        process.kill()
        process.wait()
        run.journal.append([step(number) for number in range(2, 9)])
        log = tmp_path / "wandb" / "process.log"
        assert run.follow().close().startswith(f"W&B failed (its process ended with -9, see {log});")


@pytest.mark.thorough
def test_one_wandb_run_has_every_step_once_over_a_restart(tmp_path: Path) -> None:
    with recording() as (url, runs):
        first = Recorded(tmp_path / "first", url)
        first.journal.append([step(number) for number in range(2, 11)])
        assert first.follow().close(90) == ""
        assert [line["_step"] for line in runs.history] == list(range(1, 11))
        # The bucket has two steps more than the killed driver had sent, and the restart tells one of them again.
        history = [step(number, **{"train/loss": 2.0}) for number in range(1, 13)]
        second = Recorded(tmp_path / "second", url, earlier=history, first=12)
        second.journal.append([step(number) for number in range(13, 31)])
        assert second.follow().close(90) == ""
        assert second.said == [f"W&B is online: {url}/me/oasis/runs/digits-1"]
    assert runs.names == {"digits-1"}
    assert [line["_step"] for line in runs.history] == list(range(1, 31))
    assert [line["train/loss"] for line in runs.history[8:14]] == [1.0, 1.0, 2.0, 2.0, 1.0, 1.0]
    assert second.holding_the_key() == []


@pytest.mark.thorough
def test_a_server_that_stops_answering_in_the_middle_delays_the_end_by_seconds_alone(tmp_path: Path) -> None:
    with recording() as (url, runs):
        run = Recorded(tmp_path, url)
        eventually(lambda: run.said)
        runs.stalled.set()
        run.journal.append([step(number) for number in range(2, 40)])
        follower = run.follow()
        began = time.monotonic()
        follower.close(90)
        assert time.monotonic() - began < 30
    [recorded] = tmp_path.glob("wandb/wandb/run-*/*.wandb")
    assert b"train/loss" in recorded.read_bytes()


def test_a_resumed_run_is_sent_only_what_it_lacks() -> None:
    history = [{"event": "step", "step": number, "values": {}} for number in (10, 20, 30)]
    epoch = {"event": "epoch", "step": 30, "values": {"val/loss": 1.0}}
    live = [{"event": "step", "step": number, "values": {}} for number in (20, 30, 40)]
    assert [number for number, _ in fresh(iter([*history, epoch, *live]), first=0)] == [10, 20, 30, 30, 40]
    assert [number for number, _ in fresh(iter([*history, epoch, *live]), first=21)] == [30, 30, 40]


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
    assert said.pop() == f"W&B is used with the key from file {tmp_path / 'key'}."
    with pytest.raises(AuthError, match="none cannot be read: No such file"):
        reader("auto", tmp_path / "none")
    monkeypatch.setenv(credentials.KEY_VARIABLE, "not-a-key")
    assert reader("auto") is None
    assert said.pop().startswith("W&B is off: what variable WANDB_API_KEY holds is not a W&B key: 9 characters")
    monkeypatch.setattr(tracking, "find_spec", lambda name: None)
    assert reader("auto") is None
    assert said.pop().startswith("W&B is off: the package wandb is not installed.")
    with pytest.raises(PlaceError, match="the package wandb is not installed"):
        reader("offline")
    assert said == []


@pytest.mark.parametrize(
    ("record", "line"),
    [
        ({"event": "saving", "step": 30}, "step     30  saving a checkpoint in the background"),
        (
            {"event": "checkpoint", "name": "c-30", "bytes": 1_400_000_000, "seconds": 3.21, "step": 30},
            "checkpoint c-30 committed in 3.21 s (1400.0 MB)",
        ),
        (
            {
                "event": "checkpoint",
                "name": "c-30",
                "bytes": 2_000_000,
                "seconds": 1.0,
                "step": 30,
                "blocked_seconds": 0.125,
                "reason": "notice",
            },
            "checkpoint c-30 committed in 1.00 s (2.0 MB), before a node goes; training stood still for 0.12 s of it",
        ),
        (
            {"event": "notice", "source": "drain", "seconds_left": 14.6, "step": 30},
            "notice (drain) at step 30: a node goes in 15 s; saving at once",
        ),
        (
            {"event": "notice", "source": "drain", "seconds_left": None, "step": 30},
            "notice (drain) at step 30: a node goes soon; saving at once",
        ),
        (
            {
                "event": "summary",
                "run": "r",
                "val/accuracy": 0.5,
                "val/images": 1_281_167,
                "steps": 1_000_000,
                "results_uri": "/r",
            },
            "run r is complete: validation accuracy 50.00% on 1,281,167 images after 1,000,000 steps; results in /r",
        ),
    ],
)
def test_what_happens_beside_the_steps_is_told_in_a_line(record: dict[str, Any], line: str) -> None:
    assert progress.text(record) == line


def test_an_attempt_says_what_it_goes_on_from() -> None:
    assert progress.text(resumed(0, None)) == "begun on 2 workers: there is no checkpoint yet"
    assert progress.text(resumed(30, "c-30")) == "resumed from c-30 on 2 workers: epoch 3.00, step 30"


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


def test_a_segment_holds_what_came_since_the_last_and_a_failed_write_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = locate(tmp_path)
    segments = Segments(folder, attempt=7)
    segments.add(resumed(0, None))
    segments.add(step(10))
    first = segments.close()
    segments.add(step(20))  # the loop goes on while the first is written
    first()
    first()
    assert [record["step"] for record in history(folder)] == [0, 10]
    with monkeypatch.context() as patch:
        patch.setattr(type(folder), "write", lambda *_: (_ for _ in ()).throw(OSError("no space left")))
        with pytest.raises(OSError, match="no space left"):
            segments.close()()
    assert [record["step"] for record in history(folder)] == [0, 10]
    segments.add(step(30))
    segments.close()()
    segments.close()()
    assert [record["step"] for record in history(folder)] == [0, 10, 20, 30]
    # A write that failed may yet arrive: its name is not given again.
    assert [name[-12:] for name in folder.child("journal").names()] == ["000000.jsonl", "000002.jsonl"]
    write = type(folder).write

    def slow(self: Folder, name: str, content: bytes) -> None:
        segments.add(step(40))
        segments.close()
        write(self, name, content)

    segments.add(step(35))
    with monkeypatch.context() as patch:
        patch.setattr(type(folder), "write", slow)
        segments.close()()
    assert [record["step"] for record in history(folder)] == [0, 10, 20, 30, 35]
    segments.close()()
    assert [record["step"] for record in history(folder)] == [0, 10, 20, 30, 35, 40]
    folder.child("journal").write("0000000000000000008-000000.jsonl", b'\xff{"event": "st\nnull\n')  # a damaged disk's
    later = Segments(folder, attempt=123456)
    later.add(resumed(10, "c-10"))
    later.close()()
    assert [(record["event"], record["step"]) for record in history(folder)] == [
        ("resumed", 0),
        ("step", 10),
        ("resumed", 10),
    ]


def test_what_a_run_publishes_is_the_same_here_and_in_the_bucket_and_can_be_synced_to_wandb(tmp_path: Path) -> None:
    folder, results = locate(tmp_path / "run"), tmp_path / "results"
    segments = Segments(folder, attempt=1)
    values = {"val/loss": 0.5, "val/accuracy": 0.9, "val/images": 10}
    for record in (resumed(0, None), step(10), step(10, event="epoch", epoch=1.0, **values)):
        segments.add(record)
    segments.close()()
    recorded = results / "wandb" / "wandb" / "offline-run-1-r" / "run-r.wandb"
    recorded.parent.mkdir(parents=True)
    recorded.write_bytes(b"a run")
    table, uri = publish(folder, results, {"model": "nano", "data": "/data/digits", "run": "r"})
    kept = folder.child("results")
    names = ["curve.png", "metrics.jsonl", "summary.json", "table.txt"]
    assert kept.files() == sorted([*names, "wandb/offline-run-1-r/run-r.wandb"])
    assert uri == kept.uri and "validation accuracy 90.0%" in table
    assert all(kept.read(name) == (results / name).read_bytes() for name in names)
    assert kept.read("wandb/offline-run-1-r/run-r.wandb") == b"a run"
    assert [record["event"] for record in parse(kept.read("metrics.jsonl").decode())] == ["resumed", "step", "epoch"]


def test_transient_lines_give_way_on_a_terminal_and_no_others_do() -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    terminal = Terminal()
    progress.emit({"event": "saving", "step": 3}, terminal)
    progress.emit({"event": "note", "text": "kept"}, terminal)
    assert terminal.getvalue() == "\r\x1b[Kstep      3  saving a checkpoint in the background\r\x1b[Kkept\n"
