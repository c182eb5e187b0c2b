"""The command `train` as a user types it, given what cannot be trained: how it ends before a Ray is started.

What needs a disk of its own is tried in a process of its own.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import pytest

from emulator.machine.state import CHECKOUT
from tests.support import loopback, namespaces
from tests.support.command_line import LAPTOP
from tests.support.loopback import Reply, Request
from tests.support.processes import python
from workloads.__main__ import main
from workloads.cluster import session
from workloads.convnext.images.pack import Picture, write_split
from workloads.storage.folders import EMULATOR_VARIABLE

MOUNT = """
mount -t tmpfs -o size=4k tmpfs "$1" && head -c 4096 /dev/zero > "$1/file" && mount -o remount,%s "$1" || exit 99
disk=$1; shift; "$@"; code=$?
find "$disk" -type f > files
exit $code
"""
MOUNTS = {"full": MOUNT % "rw", "read-only": MOUNT % "ro"}
"""What a shell does around the command, in a namespace of mounts of its own; `files` is what the disk then holds."""


@dataclass(frozen=True)
class Case:
    """One thing that is wrong."""

    flags: str
    code: int
    said: str
    """The one message: what was wrong with which value, and what to do."""
    mounted: str = ""
    """What is mounted on the folder `disk`."""


CASES = {
    "a missing data path": Case("--data {here}/none", 2, "the data path {here}/none does not exist. Name another"),
    "a data name": Case(
        "--data nope", 2, "'nope' was looked for below the data mount /data: the data path /data/nope does not"
    ),
    "the name of a folder here": Case("--data whole", 2, "For the folder here give --data {here}/whole."),
    "a file as data path": Case("--data {here}/file", 2, "the data path {here}/file is no folder. Name another"),
    "an empty data path": Case("--data {here}/empty", 2, "there is nothing at {here}/empty. Name another place with"),
    "data without a split": Case("--data {here}/half", 2, "{here}/half holds no folder 'val'. Lay it out as train/"),
    "an unknown recipe": Case("--recipe digit_laptop", 2, "there is no recipe 'digit_laptop'; there are digits_laptop"),
    "an unknown field": Case("--set bach_size=3", 2, "bach_size"),
    "a batch larger than the data": Case(
        "--data {here}/small --batch-size 9",
        2,
        "batch_size is 9, but {here}/small has 8 training images. Choose --batch-",
    ),
    "a batch larger than the shards": Case(
        "--data {here}/packed --batch-size 9", 2, "batch_size is 9, but {here}/packed has 8 training images. Choose"
    ),
    "a dry run of such a batch": Case(
        "--data {here}/small --batch-size 9 --dry-run", 2, "small has 8 training images."
    ),
    "more workers than images in a batch": Case(
        "--batch-size 4 --workers 8", 2, "--workers is 8; it must be a number or"
    ),
    "a storage that is a file": Case(
        "--storage {here}/file", 8, "cannot list {here}/file/first/checkpoints: Not a directory"
    ),
    "a full disk": Case(
        *("--storage {here}/disk", 8, "cannot write probe to {here}/disk/first/write-test: No space left on device. "),
        mounted="full",
    ),
    "a read-only disk": Case(
        *("--storage {here}/disk", 8, "cannot write probe to {here}/disk/first/write-test: Read-only file system. "),
        mounted="read-only",
    ),
    "a read-only bucket": Case(
        "--storage gs://runs", 7, "ray lacks storage.objects.create access. The account needs roles/storage.objectUser"
    ),
    "a file for results": Case(
        "--results {here}/file", 8, "cannot write results to {here}/file/first: Not a directory"
    ),
    "a full disk for results": Case(
        *("--results {here}/disk", 8, "cannot write results to {here}/disk/first: No space left on device. Name"),
        mounted="full",
    ),
    "a read-only disk for results": Case(
        "--results {here}/disk",
        8,
        "cannot write results to {here}/disk/first: Read-only file system. Name another folder with --results; if its",
        mounted="read-only",
    ),
}


def refused(request: Request) -> Reply:
    """A bucket whose objects may be read, of which there are none."""
    if request.method == "GET":
        return 404, {"error": {"code": 404, "message": "No such object"}}
    message = "ray lacks storage.objects.create access"
    errors = [{"domain": "global", "reason": "forbidden", "message": message}]
    return 403, {"error": {"code": 403, "message": message, "errors": errors}}


def contents(folder: Path) -> dict[Path, bytes]:
    """Every file below."""
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def ended_apart(words: list[str], around: list[str]) -> tuple[int, str, str]:
    """Exit code and what was printed, of a process with this around it."""
    variables = {**os.environ, "PYTHONPATH": str(CHECKOUT)}
    done = python("-m", "workloads", *words, within=around, env=variables, cwd=Path.cwd(), timeout=120)
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.thorough] * bool(case.mounted)) for name, case in CASES.items()]
)
def test_what_cannot_be_trained_ends_with_one_message_its_exit_code_and_nothing_written(
    name: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    nothing_set: None,
    capsys: pytest.CaptureFixture[str],
) -> None:
    case, here, apart = CASES[name], tmp_path, namespaces.apart("mount")
    if case.mounted and not apart:  # a disk that nobody can write to is all that such a machine has
        flag = case.flags.partition(" ")[0]
        what = "results" if flag == "--results" else "probe"
        case = Case(f"{flag} /proc", case.code, f"cannot write {what} to /proc")
    for folder in ("empty", "disk", "half/train", "whole/train", "whole/val", "runs/first/checkpoints"):
        (here / folder).mkdir(parents=True)
    (here / "file").touch()
    for split, count in (("train", 8), ("val", 1)):
        (here / "small" / split / "cat").mkdir(parents=True)
        for number in range(count):
            (here / "small" / split / "cat" / f"{number}.png").touch()
        write_split([Picture(str(number), ".png", b"", 0) for number in range(count)], here / "packed" / split)
    (here / "runs" / "first" / "checkpoints" / "kept").write_bytes(b"an earlier checkpoint")
    before = contents(here)

    places = {"--data": "whole", "--storage": "runs", "--results": "results"}
    flags = case.flags.format(here=here).split()
    usual = [word for flag, folder in places.items() if flag not in flags for word in (flag, str(here / folder))]
    words = ["train", "--run", "first", *usual, *flags]
    monkeypatch.chdir(here)
    with loopback.answering(refused) as url:
        monkeypatch.setenv(EMULATOR_VARIABLE, url)
        if case.mounted:
            around = [*apart, "sh", "-c", MOUNTS[case.mounted], "sh", str(here / "disk")]
            code, out, err = ended_apart(words, around)
        else:
            monkeypatch.setattr(session, "prepare", lambda address: LAPTOP)
            code, (out, err) = main(words), capsys.readouterr()

    assert (code, out) == (case.code, ""), err
    problem, remedy = err.splitlines()
    assert problem.startswith("error: ") and case.said.format(here=here) in f"{problem} {remedy}"
    if case.mounted:
        before[here / "files"] = f"{here}/disk/file\n".encode()
    assert contents(here) == before
    assert [run.name for run in (here / "runs").iterdir()] == ["first"]
