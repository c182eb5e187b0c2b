"""Data in a bucket: copied to a node once, again when it was corrected, and with a verdict where it does not fit."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.support.storage_places import storage_place
from workloads.convnext.images import location
from workloads.convnext.images.location import data_folder
from workloads.environment import variable
from workloads.errors import DataIntegrityError, PlaceError
from workloads.storage.disk import PARTIAL
from workloads.storage.folders import Folder

IMAGES = {
    f"{split}/cat/{number}.png": f"{split} {number}".encode() for split in ("train", "val") for number in range(3)
}


@pytest.fixture
def bucket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Folder]:
    """A bucket with images; this node's scratch disk is a folder of the test."""
    (tmp_path / "scratch").mkdir()
    monkeypatch.setenv(variable("scratch_mount"), str(tmp_path / "scratch"))
    with storage_place("gs", tmp_path / "google", monkeypatch) as place:
        for name, content in IMAGES.items():
            place.write(name, content)
        yield place


def copied(place: Folder) -> Path:
    folder = data_folder(place.uri)
    assert folder is not None
    return folder


def contents(folder: Path) -> dict[str, bytes]:
    return {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


def test_data_is_copied_once_and_an_image_that_was_corrected_is_copied_again(bucket: Folder) -> None:
    first = copied(bucket)
    assert contents(first) == IMAGES
    assert copied(bucket) == first
    # As long as before, so that nothing but its time tells them apart.
    corrected = {"train/cat/1.png": IMAGES["train/cat/1.png"][::-1]}
    bucket.write("train/cat/1.png", corrected["train/cat/1.png"])
    assert contents(copied(bucket)) == IMAGES | corrected
    assert contents(first) == IMAGES  # a run that reads it goes on with what it began with


def test_a_full_disk_is_a_verdict_and_what_was_copied_is_not_copied_again(bucket: Folder, tmp_path: Path) -> None:
    folder = copied(bucket)
    (folder.parent / "complete").unlink()
    torn, kept = folder / "train/cat/2.png", folder / "val/cat/0.png"
    torn.unlink()
    kept.write_bytes(kept.read_bytes()[::-1])  # not as in the bucket, so that a copy would show
    partial = torn.with_name(torn.name + PARTIAL)
    partial.symlink_to("/dev/full")
    with pytest.raises(PlaceError, match=r"test-runs/team cannot be copied to .*: No space left on device; .* GB are"):
        data_folder(bucket.uri)
    assert not (folder.parent / "complete").exists()
    assert not partial.is_symlink()
    assert copied(bucket) == folder
    assert contents(folder) == IMAGES | {"val/cat/0.png": kept.read_bytes()}
    assert kept.read_bytes() != IMAGES["val/cat/0.png"]


def test_data_that_does_not_fit_is_refused_before_it_fills_the_disk(
    bucket: Folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entries = bucket.entries()
    larger = [replace(entry, size=1 << 60) if entry.path == "val/cat/2.png" else entry for entry in entries]
    monkeypatch.setattr(Folder, "entries", lambda _: larger)
    with pytest.raises(PlaceError, match="No space left on device"):
        data_folder(bucket.uri)
    assert not list((tmp_path / "scratch").rglob("*.png"))


def test_what_a_killed_copy_left_half_written_counts_as_room_for_the_next_one(
    bucket: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = copied(bucket)
    (folder.parent / "complete").unlink()
    torn = folder / "train/cat/2.png"
    torn.rename(torn.with_name(torn.name + PARTIAL))
    monkeypatch.setattr(location.shutil, "disk_usage", lambda _: SimpleNamespace(free=0))
    assert contents(copied(bucket)) == IMAGES


def test_a_scratch_disk_that_is_no_folder_to_write_to_is_a_verdict(bucket: Folder, tmp_path: Path) -> None:
    (tmp_path / "scratch" / "oasis-data").touch()
    with pytest.raises(PlaceError, match="cannot be copied to"):
        data_folder(bucket.uri)


@pytest.mark.parametrize("change", ["deleted", "written again"])
def test_data_that_changes_while_it_is_copied_is_no_lost_worker(
    bucket: Folder, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    copy = Folder.copy

    def too_late(folder: Folder, name: str, file: Path) -> int:
        if name == "val/cat/2.png":
            folder.write(name, b"another") if change == "written again" else folder.delete(name)
        return copy(folder, name, file)

    monkeypatch.setattr(Folder, "copy", too_late)
    with pytest.raises(DataIntegrityError, match=rf"val/cat/2.png was {change} while it was copied"):
        data_folder(bucket.uri)
