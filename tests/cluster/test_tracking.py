"""The W&B key over the whole of a real run: known to the driver and to W&B's own process, and to nothing of Ray's."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
import time
from collections.abc import Iterator
from io import FileIO
from pathlib import Path

import pytest

from tests.support.processes import begun, command, descendants, usual_variables
from tests.support.wandb_server import silent
from workloads.convnext.images import digits

pytestmark = pytest.mark.ray

CANARY = "c0ffee" * 6 + "cafe"


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    """A short path for Ray's sockets, whose names the kernel limits to 107 characters."""
    folder = Path(tempfile.mkdtemp(prefix="key-"))
    yield folder
    shutil.rmtree(folder)


def environment_has(pid: int) -> bool:
    """Whether the key stands in the environment that a process was started with."""
    try:
        return CANARY.encode() in Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return False


def memory_has(pid: int, needle: bytes) -> bool:
    """Whether a process has the needle in its memory (proc(5): pid/maps, pid/mem)."""
    try:
        maps = Path(f"/proc/{pid}/maps").read_text()
        with Path(f"/proc/{pid}/mem").open("rb", buffering=0) as memory:
            return any(needle in content for content in writable(memory, maps))
    except (FileNotFoundError, ProcessLookupError):  # ended
        return False


def writable(memory: FileIO, maps: str) -> Iterator[bytes]:
    """The contents of the writable mappings."""
    for found in re.finditer(r"^([0-9a-f]+)-([0-9a-f]+) rw", maps, re.MULTILINE):
        first, last = (int(text, 16) for text in found.groups())
        try:
            memory.seek(first)
            yield memory.read(last - first) or b""
        except OSError:  # a device's, or gone meanwhile
            continue


def in_files(folder: Path) -> list[Path]:
    """Files below that hold the key; sockets and what vanishes meanwhile are passed over."""
    found = []
    for directory, _, names in os.walk(folder):
        for path in (Path(directory, name) for name in names):
            try:
                if path.is_file() and not path.is_symlink() and CANARY.encode() in path.read_bytes():
                    found.append(path)
            except OSError:
                continue
    return found


def test_the_key_is_in_no_argv_environment_file_log_or_memory_of_ray(place: Path) -> None:
    """It stands in a file and in the environment, so that a leak of either is seen."""
    digits.write(str(place / "digits"), lambda _: None)
    key = place / "secret" / "key"
    key.parent.mkdir()
    (place / "tmp").mkdir()
    key.write_text(CANARY)
    places = ["--data", str(place / "digits"), "--storage", str(place / "runs"), "--results", str(place / "results")]
    words = ["--run", "keyed", "--epochs", "6", *places, "--wandb", "online", "--wandb-key-file", str(key)]
    with silent() as url:
        variables = usual_variables(
            WANDB_API_KEY=CANARY, TMPDIR=str(place / "tmp"), WANDB_BASE_URL=url, HOME=str(place)
        )
        process = begun("-m", "workloads", "train", *words, env=variables)
        seen: dict[str, bool] = {}
        copies: set[int] = set()
        deadline = time.monotonic() + 400
        while process.poll() is None and time.monotonic() < deadline:
            family = descendants(process.pid)
            # What the driver starts is a copy of it, with its environment, for the moment until it has another program.
            before, copies = copies, {pid for pid, line in family.items() if line == command(process.pid)}
            assert not before & copies
            for pid, line in family.items():
                assert CANARY not in line
                assert pid in copies or not environment_has(pid), line
                kind = next((name for name in ("gcs_server", "raylet", "ray::") if name in line), "")
                if kind and list(place.glob("runs/keyed/checkpoints/*")):
                    seen[kind] = seen.get(kind, False) or memory_has(pid, CANARY.encode())
            if seen:
                # The same look at the driver, which has the key, shows that it would be found.
                seen["driver"] = seen.get("driver", False) or memory_has(process.pid, CANARY.encode())
            assert [path for path in in_files(place) if path != key] == []
            time.sleep(1.0)  # a look at so much memory takes as long again, which the run itself would have
        said, _ = process.communicate(timeout=400)
    assert process.returncode == 0, said
    assert seen == {"gcs_server": False, "raylet": False, "ray::": False, "driver": True}
    assert CANARY not in said
    assert "W&B is recorded offline, because the server cannot be used" in said
    assert [path for path in in_files(place) if path != key] == []
    assert list(place.glob("results/keyed/wandb/wandb/offline-run-*/run-keyed.wandb"))
