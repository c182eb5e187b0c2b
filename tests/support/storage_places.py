"""A folder for runs on each kind of storage that the workloads know."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.emulator.google import served
from workloads.storage.folders import EMULATOR_VARIABLE, Folder, locate


@contextmanager
def storage_place(kind: str, scratch: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Folder]:
    """An empty folder: `local` in `scratch`, or `gs` in a bucket of an emulated Cloud Storage, gone with the block."""
    if kind == "local":
        yield locate(scratch / "runs")
        return
    with served(scratch) as google:
        google.make_bucket("test-runs")
        monkeypatch.setenv(EMULATOR_VARIABLE, f"http://{google.host}")
        yield locate("gs://test-runs/team")
