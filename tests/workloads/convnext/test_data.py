"""Image folders and tar shards: what they give, alike in any process, and what is said of each thing wrong in them."""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import io
import itertools
import json
import multiprocessing
import os
import pickle
import resource
import signal
import struct
import subprocess
import sys
import tarfile
import threading
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import psutil
import pytest
import simplejpeg
import torch
from PIL import ExifTags, Image, ImageOps
from torch import Tensor
from torchvision.transforms.v2 import functional

from oasis_stack.command_line.stack_file import ROOT
from tests.support.command_line import CommandLine
from tests.support.training import CPU
from tests.support.waiting import eventually
from workloads.convnext import config as configuration
from workloads.convnext.config import TrainConfig
from workloads.convnext.images import data, stream
from workloads.convnext.images.data import ResidentImages, sources, stores
from workloads.convnext.images.folder import FolderPictures, image_files
from workloads.convnext.images.framing import Box, Framing
from workloads.convnext.images.location import SYNTHETIC, check_data, fetched
from workloads.convnext.images.pack import Picture, write_split
from workloads.convnext.images.pictures import square
from workloads.convnext.images.sampling import Batch, Slot, Source, slots
from workloads.convnext.images.shards import CLASS_NAMES, INDEX_SUFFIX, ShardPictures, index_path
from workloads.convnext.images.stream import StreamedImages, streamed
from workloads.convnext.run import train_group
from workloads.errors import DataIntegrityError, LostProcessError, PlaceError, UsageError, WorkloadError


def small(**changes: Any) -> TrainConfig:
    """Four images of 32 pixels a step, streamed and not altered."""
    values = {"batch_size": 4, "augmentation": "none", "resident": False, "loader_workers": 0, **changes}
    return dataclasses.replace(configuration.digits_laptop(), **values)


def encoded(number: int, kind: str = "PNG", side: int = 40) -> bytes:
    """A picture of noise, another for each number."""
    levels = np.random.default_rng(number).integers(0, 256, (side - 4, side, 3), dtype=np.uint8)
    content = io.BytesIO()
    Image.fromarray(levels).save(content, format=kind)
    return content.getvalue()


def image_folder(root: Path, counts: dict[str, dict[str, int]]) -> Path:
    """`counts` is split -> class -> images."""
    for split, classes in counts.items():
        for name, count in classes.items():
            (root / split / name).mkdir(parents=True)
            for number in range(count):
                (root / split / name / f"{number}.png").write_bytes(encoded(number))
    return root


def shard_folder(root: Path, labels: list[int], per_shard_megabytes: float = 0.015) -> Path:
    """A training split of so many pictures, and a validation split of one."""
    pictures = [Picture(f"picture{number:03d}", ".png", encoded(number), label) for number, label in enumerate(labels)]
    write_split(pictures, root / "train", per_shard_megabytes)
    write_split([Picture("only", ".jpg", encoded(99, "JPEG"), 0)], root / "val")
    return root


def tar(file: Path, members: dict[str, bytes]) -> Path:
    """A tar with these members and no index."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(file, "w") as archive:
        for name, content in members.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return file


def everything(source: Source, batch_size: int = 4, epoch: int = 0) -> tuple[Tensor, Tensor]:
    """All images and labels of a split, in order."""
    visit = torch.arange(len(source))
    batches = list(source.batches(slots(visit, batch_size, 0, 1), epoch))
    real = [batch.slot.weights > 0 for batch in batches]
    images = torch.cat([batch.images[kept] for batch, kept in zip(batches, real, strict=True)])
    return images, torch.cat([batch.labels[kept] for batch, kept in zip(batches, real, strict=True)])


def refusal(kind: type[WorkloadError], root: Path, **changes: Any) -> str:
    """What is said about data that must not be accepted, before or while it is read."""
    # Not pytest.raises, which would keep the frames, and so the loader's processes, for the rest of the test.
    try:
        train, val = sources(small(**changes), root, CPU)
        everything(train)
        everything(val)
    except kind as error:
        assert error.remedy
        return str(error)
    raise AssertionError(f"{root} was accepted")


# What is read


@pytest.mark.parametrize("resident", [True, False])
def test_a_folder_gives_its_images_and_labels_resident_or_streamed(tmp_path: Path, resident: bool) -> None:
    root = image_folder(tmp_path, {"train": {"cat": 5, "dog": 3}, "val": {"dog": 2}})
    (root / "train" / "cat" / "notes.txt").write_text("no image")
    (root / "train" / "cat" / "._0.png").write_bytes(b"what macOS leaves behind")
    (root / "train" / ".cache").mkdir()
    train, val = sources(small(resident=resident), root, CPU)
    images, labels = everything(train)
    assert images.shape == (8, 3, 32, 32)
    assert images.dtype == torch.uint8
    assert labels.tolist() == [0] * 5 + [1] * 3
    assert val.classes == train.classes == ("cat", "dog")
    assert everything(val)[1].tolist() == [1, 1]
    assert torch.equal(images[5:7], everything(val)[0])


def test_data_that_was_listed_before_the_ranks_met_is_not_listed_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = str(image_folder(tmp_path, {"train": {"a": 4}, "val": {"a": 1}}))
    train_group._prepare(place)
    with monkeypatch.context() as patched:
        patched.setattr(data, "stores", lambda _: pytest.fail("it is listed while others wait"))
        train, val = sources(small(), fetched(place), CPU)
    assert (len(train), len(val)) == (4, 1)
    assert len(sources(small(), fetched(place), CPU)[0]) == 4


def test_class_folders_are_listed_side_by_side_as_each_costs_a_mount_a_round_trip(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = image_folder(tmp_path, {"train": {"a": 2, "b": 1}})
    met = threading.Barrier(2, timeout=10)

    def together(place: Path) -> list[str]:
        met.wait()
        return image_files(place)

    monkeypatch.setattr("workloads.convnext.images.folder.image_files", together)
    assert FolderPictures(root / "train", None).labels.tolist() == [0, 0, 1]


def test_shards_made_of_a_folder_hold_the_same_pictures(tmp_path: Path, cli: CommandLine) -> None:
    folder = image_folder(tmp_path / "images", {"train": {"cat": 5, "dog": 3}, "val": {"dog": 2}})
    to = tmp_path / "shards"
    words = ["shards", "--from", str(folder), "--to", str(to), "--shard-megabytes", "0.01"]
    assert "8 images in 4 shards" in cli(*words).out
    assert sorted(file.name for file in (to / "val").iterdir()) == ["00000.tar", "00000.tar.index.json"]
    with tarfile.open(to / "val" / "00000.tar") as archive:
        assert sorted(archive.getnames()) == ["dog/0.cls", "dog/0.png", "dog/1.cls", "dog/1.png"]
    assert stores(to)[0].classes == ("cat", "dog")

    def pictures(root: Path) -> list[tuple[bytes, int]]:
        return sorted((store.read(at), int(label)) for store in stores(root) for at, label in enumerate(store.labels))

    assert pictures(to) == pictures(folder)
    assert "exists already" in cli(*words, code=2).err
    assert "--shard-megabytes is 0, but must be above 0" in cli(*words[:-1], "0", code=2).err
    assert "--from needs --to" in cli(*words[:3], code=2).err
    assert f"{folder} holds no shards" in cli("shards", "--index", str(folder), code=2).err
    assert "--to goes with --from" in cli("shards", "--index", str(to), *words[3:5], code=2).err
    (tmp_path / "train").touch()
    assert f"{tmp_path}/train cannot be read: Not a directory" in cli("shards", "--index", str(tmp_path), code=8).err
    nowhere = cli("shards", "--from", str(to / "val"), "--to", str(tmp_path / "x"), code=2).err
    assert f"{to / 'val'} holds no folder 'train'" in nowhere


def test_images_whose_names_differ_in_their_endings_alone_have_a_key_each(tmp_path: Path, cli: CommandLine) -> None:
    folder = image_folder(tmp_path / "images", {"train": {"cat": 2}, "val": {"cat": 1}})
    contents = [encoded(0), encoded(1), encoded(7, "JPEG")]
    (folder / "train" / "cat" / "0.jpg").write_bytes(contents[2])
    for number in range(2, 7):  # as a number appended to another's name would give
        contents.append(encoded(10 + number))
        (folder / "train" / "cat" / f"0-{number}.png").write_bytes(contents[-1])
    cli("shards", "--from", str(folder), "--to", str(tmp_path / "shards"))
    packed = stores(tmp_path / "shards")[0]
    assert sorted(map(packed.read, range(len(contents)))) == sorted(contents)


def test_shards_whose_classes_have_no_names_yet_do_not_look_like_data(tmp_path: Path, cli: CommandLine) -> None:
    named = os.fsdecode(b"caf\xe9")  # as an archive from before UTF-8 has it
    tea = "tea\u2028"  # a line to Unicode, and not to a file
    folder = image_folder(tmp_path / "images", {"train": {named: 2, tea: 1}, "val": {tea: 1}})
    words = ["shards", "--from", str(folder), "--to"]
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / CLASS_NAMES).symlink_to("/dev/full")
    assert "classes.txt: No space left on device" in cli(*words, str(tmp_path / "full"), code=8).err
    assert not (tmp_path / "full" / "val").exists()
    cli(*words, str(tmp_path / "shards"))
    assert stores(tmp_path / "shards")[0].classes == ("caf\ufffd", tea)


def test_an_index_is_reckoned_where_none_lies_and_says_the_same(tmp_path: Path) -> None:
    root = shard_folder(tmp_path, [0, 1, 2, 0, 1, 2, 2])
    written = {file.name: file.read_bytes() for file in (root / "train").glob("*.json")}
    assert len(written) == 3
    with_index = everything(sources(small(), root, CPU)[0])
    for file in (root / "train").glob("*.json"):
        file.unlink()
    without = everything(sources(small(), root, CPU)[0])
    assert torch.equal(with_index[0], without[0])
    assert with_index[1].tolist() == without[1].tolist() == [0, 1, 2, 0, 1, 2, 2]
    assert {file.name: file.read_bytes() for file in (root / "train").glob("*.json")} == written


def test_shards_as_others_write_them_are_indexed_once_and_read(
    tmp_path: Path, cli: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    members = {
        "./a.b/n01.JPEG": encoded(1, "JPEG"),
        "./a.b/n01.json": b"{}",
        "./a.b/n01.cls": b"1\n",
        f"{'long/' * 40}n02.png": encoded(2),
        f"{'long/' * 40}n02.seg.png": b"a mask, which is no picture of ours",
        f"{'long/' * 40}n02.cls": b"0",
    }
    tar(tmp_path / "train" / "imagenet-000000.tar", members)
    tar(tmp_path / "val" / "imagenet-000000.tar", {"x.png": encoded(3), "x.cls": b"1"})
    (tmp_path / "val" / "._imagenet-000000.tar").write_bytes(b"what macOS leaves behind")
    (tmp_path / CLASS_NAMES).write_text("tench\ngoldfish\n")
    with monkeypatch.context() as mounted:
        mounted.setattr(os, "access", lambda path, mode: False)  # root may write anywhere but on a mount
        assert "2 shards of" in check_data(str(tmp_path), here=True)
    assert check_data(str(tmp_path), here=True) == ""
    assert "2 indices written; 0 shards had one" in cli("shards", "--index", str(tmp_path)).out
    index_path(tmp_path / "train" / "imagenet-000000.tar").unlink()
    in_the_way = tmp_path / "train" / f".imagenet-000000.tar{INDEX_SUFFIX}.{os.getpid()}"
    in_the_way.mkdir()
    assert "cannot write" in cli("shards", "--index", str(tmp_path), code=8).err
    in_the_way.rmdir()
    assert "1 index written; 1 shard had one" in cli("shards", "--index", str(tmp_path)).out
    train, val = sources(small(batch_size=2), tmp_path, CPU)
    images, labels = everything(train)
    assert (train.classes, labels.tolist(), everything(val)[1].tolist()) == (("tench", "goldfish"), [1, 0], [1])
    with Image.open(io.BytesIO(encoded(2))) as picture:
        expected = np.array(picture.resize((32, 32), Image.Resampling.BILINEAR))
    # torch and Pillow round differently.
    assert (images[1].int() - torch.tensor(expected).permute(2, 0, 1)).abs().max() <= 1


@pytest.mark.thorough
@pytest.mark.parametrize("layout", ["folder", "shards"])
def test_loader_processes_give_what_the_training_process_gives_epoch_after_epoch(tmp_path: Path, layout: str) -> None:
    root = (
        image_folder(tmp_path, {"train": {"a": 4, "b": 3}, "val": {"a": 1}})
        if layout == "folder"
        else shard_folder(tmp_path, [0, 0, 0, 0, 1, 1, 1])
    )
    here, held_out = sources(small(augmentation="crop-flip"), root, CPU)
    there, held_out_there = sources(small(augmentation="crop-flip", loader_workers=2), root, CPU)
    first = everything(there, epoch=1)
    assert torch.equal(everything(held_out_there)[0], everything(held_out)[0])
    # An epoch that is given up in its middle, as by a run that ends, leaves nothing behind for the next.
    given_up = there.batches(slots(torch.arange(7), 2, 0, 1), 5)
    next(given_up)
    second = everything(there, epoch=2)
    assert torch.equal(first[0], everything(here, epoch=1)[0])
    assert torch.equal(second[0], everything(here, epoch=2)[0])
    assert not torch.equal(first[0], second[0])
    assert first[1].tolist() == [0, 0, 0, 0, 1, 1, 1]


def test_an_epoch_that_resumes_in_its_middle_goes_on_with_the_same_pictures(tmp_path: Path) -> None:
    train, _ = sources(small(augmentation="crop-flip"), shard_folder(tmp_path, [0, 1] * 6), CPU)
    visit = torch.randperm(12)
    whole = list(train.batches(slots(visit, 4, 0, 1), epoch=3))
    rest = list(train.batches(slots(visit[4:], 4, 0, 1), epoch=3))
    assert [torch.equal(one.images, other.images) for one, other in zip(whole[1:], rest, strict=True)] == [True, True]


@pytest.mark.thorough
@pytest.mark.parametrize("processes", [0, 2])
def test_a_slot_that_is_decoded_in_parts_is_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, processes: int
) -> None:
    root = shard_folder(tmp_path, [0, 1] * 6)
    whole, _ = sources(small(augmentation="crop-flip", batch_size=12), root, CPU)
    images, labels = everything(whole, 12, epoch=3)
    monkeypatch.setattr(stream, "PART", 5)
    parted, _ = sources(small(augmentation="crop-flip", batch_size=12, loader_workers=processes), root, CPU)
    asked = slots(torch.arange(12), 12, 0, 1)
    [batch] = parted.batches(asked, 3)
    assert isinstance(parted, StreamedImages) and [len(part) for part in parted._loader._visits] == [5, 5, 2]
    assert torch.equal(batch.images, images) and torch.equal(batch.labels, labels)


class OnGpu(Tensor):
    """A CPU's tensor that calls itself a GPU's."""

    is_cuda = True


@pytest.mark.parametrize("on_gpu", [True, False])
def test_indices_of_resident_images_go_to_a_gpu_from_pinned_memory_and_are_not_waited_for(
    monkeypatch: pytest.MonkeyPatch, on_gpu: bool
) -> None:
    pinned: list[Slot] = []
    copies: list[tuple[Tensor, bool, Tensor]] = []

    def pin(slot: Slot) -> Slot:
        pinned.append(dataclasses.replace(slot, indices=slot.indices.clone(), weights=slot.weights.clone()))
        return pinned[-1]

    def copied(given: Tensor, device: torch.device, non_blocking: bool = False) -> Tensor:
        copies.append((given, non_blocking, given.clone() if on_gpu else given))
        return copies[-1][2]

    images, labels = torch.randint(0, 256, (8, 3, 4, 4), dtype=torch.uint8), torch.arange(8)
    source = ResidentImages(images.as_subclass(OnGpu) if on_gpu else images, labels, ["a"])
    cut = slots(torch.randperm(8), 4, 0, 1)
    with monkeypatch.context() as patched:
        patched.setattr(Slot, "pinned", pin)  # which needs a GPU's driver
        patched.setattr(Tensor, "to", copied)
        batches = list(source.batches(cut, 0))
    assert len(pinned) == (2 if on_gpu else 0)
    sent = pinned if on_gpu else cut
    for batch, slot, ready, (given, non_blocking, copy) in zip(batches, cut, sent, copies, strict=True):
        assert given is ready.indices and non_blocking
        assert batch.slot is ready and len(copy) == 4
        assert torch.equal(batch.images, images[slot.indices]) and torch.equal(batch.labels, labels[slot.indices])


# Odd pictures


def saved(picture: Image.Image, kind: str = "PNG", **options: Any) -> bytes:
    content = io.BytesIO()
    picture.save(content, format=kind, **options)
    return content.getvalue()


def odd_pictures() -> Iterator[tuple[str, bytes, tuple[int, int, int]]]:
    """Name, bytes, and the colour that a person sees in its first pixel."""
    red, half = Image.new("RGB", (8, 8), (200, 40, 40)), Image.new("RGBA", (8, 8), (200, 0, 0, 128))
    yield "grey", saved(Image.new("L", (8, 8), 77)), (77, 77, 77)
    yield "bilevel", saved(Image.new("1", (8, 8), 1)), (255, 255, 255)
    yield "palette", saved(red.quantize(4)), (200, 40, 40)
    yield "16-bit grey", saved(Image.fromarray(np.full((8, 8), 77 * 257, dtype=np.uint16))), (77, 77, 77)
    # Pillow writes no colours of 16 bits: one red pixel of (200, 40, 40), each level as two equal bytes.
    raw = zlib.compress(b"\0" + bytes([200, 200, 40, 40, 40, 40]))
    header = struct.pack(">IIBBBBB", 1, 1, 16, 2, 0, 0, 0)
    chunks = ((b"IHDR", header), (b"IDAT", raw), (b"IEND", b""))
    yield (
        "16-bit colours",
        b"\x89PNG\r\n\x1a\n"
        + b"".join(
            struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
            for kind, data in chunks
        ),
        (200, 40, 40),
    )
    yield "alpha", saved(half), (227, 127, 127)
    yield "grey and alpha", saved(Image.new("LA", (8, 8), (10, 0))), (255, 255, 255)
    yield "transparent palette", saved(Image.new("P", (8, 8), 0), transparency=0), (255, 255, 255)
    yield "transparent colour", saved(red, transparency=(200, 40, 40)), (255, 255, 255)
    yield "CMYK", saved(Image.new("CMYK", (8, 8), (0, 255, 255, 0)), "JPEG", quality=100), (255, 0, 0)
    yield "grey JPEG", saved(Image.new("L", (8, 8), 77), "JPEG", quality=100), (77, 77, 77)


ODD = {name: (content, colour) for name, content, colour in odd_pictures()}


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("name", ODD)
def test_a_picture_of_any_mode_becomes_the_rgb_that_a_person_sees(tmp_path: Path, name: str) -> None:
    content, colour = ODD[name]
    suffix = ".jpg" if content[:2] == b"\xff\xd8" else ".png"
    write_split([Picture("odd", suffix, content, 0)], tmp_path / "train")
    seen = square(ShardPictures(tmp_path / "train", None), 0, lambda *size: (0, 0, *size), side=4)
    assert (seen.shape, seen.dtype) == ((4, 4, 3), torch.uint8)
    assert (seen.int() - torch.tensor(colour)).abs().max() <= 2


def waves(height: int, width: int) -> Image.Image:
    """A picture as smooth as a photograph."""
    rows, columns = np.mgrid[:height, :width]
    levels = [128 + 100 * np.sin(rows / (20 + 9 * band)) * np.cos(columns / (31 - 7 * band)) for band in range(3)]
    return Image.fromarray(np.stack(levels, -1).round().astype(np.uint8))


class One:
    """A store of one picture."""

    classes: tuple[str, ...] = ("a",)
    labels = np.zeros(1, dtype=np.int64)

    def __init__(self, content: bytes) -> None:
        self.content = content

    def read(self, index: int) -> bytes:
        return self.content

    def name(self, index: int) -> str:
        return "the picture"


@pytest.mark.parametrize("options", [{}, {"progressive": True}, {"subsampling": 0}, {"quality": 20}], ids=str)
def test_of_a_jpeg_the_part_is_what_pillow_decodes(options: dict[str, Any]) -> None:
    content = saved(waves(90, 120), "JPEG", **options)
    with Image.open(io.BytesIO(content)) as picture:
        part = torch.from_numpy(np.array(picture))[10:70, 5:115].permute(2, 0, 1)
    expected = functional.resize(part, [64, 64], antialias=True).permute(1, 2, 0)
    assert torch.equal(square(One(content), 0, lambda *_: (10, 5, 60, 110), side=64), expected)


@pytest.mark.parametrize("kind", ["JPEG", "PNG"])
@pytest.mark.parametrize("scale", [1, 2])
def test_a_picture_that_its_file_says_to_turn_is_turned(scale: int, kind: str) -> None:
    for orientation in (*range(9), 9, 65535):  # 0 and what is beyond 8 are none
        exif = Image.Exif()
        exif[ExifTags.Base.Orientation] = orientation
        content = saved(waves(96, 64), kind, exif=exif)
        with Image.open(io.BytesIO(content)) as picture:
            upright = torch.from_numpy(np.array(ImageOps.exif_transpose(picture))).permute(2, 0, 1)
        part = [4, 8, 48, 40]
        side = 32 // scale
        expected = functional.resize(functional.crop(upright, *part), [side, side], antialias=True).permute(1, 2, 0)
        found = square(One(content), 0, lambda *_: (4, 8, 48, 40), side)
        assert (found.int() - expected.int()).abs().max() <= (2 if scale == 1 else 14), orientation


@pytest.mark.parametrize("kind", ["JPEG", "PNG"])
def test_a_picture_of_one_pixel_and_one_that_is_a_line_fill_the_square(kind: str) -> None:
    for size in ((1, 1), (1, 300), (300, 1)):
        content = saved(Image.new("RGB", size, (200, 40, 40)), kind, quality=100)
        for train in (True, False):
            framing = Framing(small(augmentation="crop-flip"), train)
            found = square(One(content), 0, lambda *shape, framing=framing: framing(*shape, seed=3), side=32)
            assert found.shape == (32, 32, 3) and (found.int() - torch.tensor([200, 40, 40])).abs().max() <= 3


@pytest.mark.parametrize("times", [2, 4, 8, 11])
def test_a_part_with_pixels_to_spare_is_decoded_at_a_smaller_scale_and_looks_the_same(
    times: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = saved(waves(32 * times + 37, 40 * times + 30), "JPEG", quality=95)
    decoded: list[tuple[int, ...]] = []

    def decode(*given: Any, **options: Any) -> np.ndarray[Any, Any]:
        decoded.append((pixels := simplejpeg.decode_jpeg(*given, **options)).shape)
        return pixels

    monkeypatch.setattr(
        "workloads.convnext.images.pictures.simplejpeg",
        SimpleNamespace(decode_jpeg=decode, decode_jpeg_header=simplejpeg.decode_jpeg_header),
    )

    def frame(height: int, width: int) -> Box:
        return (16, 8, 32 * times, 40 * times)

    small = square(One(content), 0, frame, side=32)
    scale = min(times, 8)
    assert decoded == [(-(-(32 * times + 37) // scale), -(-(40 * times + 30) // scale), 3)]
    whole = torch.from_numpy(simplejpeg.decode_jpeg(content)).permute(2, 0, 1)
    expected = functional.resize(functional.crop(whole, *frame(0, 0)), [32, 32], antialias=True).permute(1, 2, 0)
    difference = (small.int() - expected.int()).abs().float()
    assert difference.mean() < 2 and difference.max() < 12, (difference.mean(), difference.max())


def test_a_shard_is_opened_once_by_each_process_and_no_more_than_a_quarter_of_the_open_files_are_of_a_split(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = ShardPictures(shard_folder(tmp_path, [0, 1] * 6) / "train", None)
    opened: list[str] = []
    monkeypatch.setattr(
        os, "open", lambda path, flags, real=os.open: opened.append(Path(path).name) or real(path, flags)
    )
    contents = [store.read(index) for index in range(12)]
    shards = sorted(set(opened))
    assert sorted(opened) == shards and len(shards) > 3
    assert [store.read(index) for index in reversed(range(12))] == contents[::-1]
    assert len(opened) == len(shards)
    copy = pickle.loads(pickle.dumps(store))
    monkeypatch.setattr(resource, "getrlimit", lambda _: (8, 8))
    assert [copy.read(index) for index in (*range(12), 0)] == [*contents, contents[0]]
    assert len(copy._open) == 2


# What is wrong


def test_a_missing_or_empty_place_is_a_usage_error(tmp_path: Path) -> None:
    assert f"the data path {tmp_path / 'none'} does not exist" in refusal(UsageError, tmp_path / "none")
    (tmp_path / "empty").mkdir()
    assert "holds no folder 'train'" in refusal(UsageError, tmp_path / "empty")
    (tmp_path / "bare" / "train").mkdir(parents=True)
    assert "holds no classes" in refusal(UsageError, tmp_path / "bare")
    few = image_folder(tmp_path / "few", {"train": {"cat": 3}, "val": {"cat": 1}})
    assert "batch_size is 4, but /data has 3 training images" in refusal(UsageError, few, data="/data")
    both = image_folder(tmp_path / "both", {"train": {"cat": 3}, "val": {"cat": 1}})
    tar(both / "train" / "0.tar", {"x.png": encoded(0), "x.cls": b"0"})
    assert "holds both shards and class folders" in refusal(UsageError, both)


def test_resident_images_that_do_not_fit_are_refused_in_one_sentence() -> None:
    # More than a process of 64 bits can address, so that no machine begins to fill its memory with them.
    with pytest.raises(UsageError) as caught:
        sources(small(data=SYNTHETIC, image_size=1 << 18), None, CPU)
    assert str(caught.value).startswith(
        "the images of synthetic, all of them decoded to 262144 x 262144 pixels, do not"
    )
    assert "resident=false" in caught.value.remedy


def test_a_class_without_images_or_unknown_to_training_is_named(tmp_path: Path) -> None:
    empty = image_folder(tmp_path / "c", {"train": {"cat": 3, "dog": 0}, "val": {"cat": 1}})
    assert f"class 'dog' has no images in {empty}/train/dog" in refusal(DataIntegrityError, empty)
    stranger = image_folder(tmp_path / "s", {"train": {"cat": 4}, "val": {"cow": 1}})
    assert "classes that train/ lacks: cow" in refusal(DataIntegrityError, stranger)
    gap = shard_folder(tmp_path / "gap", [0, 1, 3, 3])
    assert f"class '2' has no images in {gap}/train" in refusal(DataIntegrityError, gap)
    from_one = shard_folder(tmp_path / "one", [1, 2, 3, 999_999_999])
    assert "class '0' has no images" in refusal(DataIntegrityError, from_one)
    named = shard_folder(tmp_path / "named", [0, 1, 1, 0])
    (named / CLASS_NAMES).write_text("cat\ndog\ncow\n")
    assert "class 'cow' has no images" in refusal(DataIntegrityError, named)


DAMAGE = (
    "empty",
    "no image",
    "PNG cut short",
    "JPEG cut short",
    "odd JPEG header",
    "JPEG bomb",
    "bomb",
)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("changes", "damage"),
    # A loader process decodes as this one does; how it tells of it does not depend on what is wrong.
    [*itertools.product(({"resident": True}, {}), DAMAGE), ({"loader_workers": 1}, "PNG cut short")],
    ids=str,
)
def test_an_image_that_does_not_decode_is_named(tmp_path: Path, damage: str, changes: dict[str, Any]) -> None:
    root = image_folder(tmp_path, {"train": {"a": 4}, "val": {"a": 1}})
    torn = root / "train" / "a" / "2.png"
    bomb = bytearray(torn.read_bytes())
    bomb[16:24] = (60_000).to_bytes(4, "big") * 2  # width and height in the header
    jpeg = bytearray(encoded(2, "JPEG"))
    size = jpeg.index(b"\xff\xc0") + 5  # in the frame's header
    jpeg[size : size + 4] = (60_000).to_bytes(2, "big") * 2
    contents = {
        "empty": b"",
        "no image": b"no image at all",
        "PNG cut short": torn.read_bytes()[:900],
        "JPEG cut short": encoded(2, "JPEG")[:-200],
        "JPEG bomb": bytes(jpeg),
        "odd JPEG header": b"\xff\xd8\xff\xe0\x00\x07JFIF\0\xff\xe1\x00\x08Exif\0\0" + encoded(2, "JPEG")[2:-200],
        "bomb": bytes(bomb),
    }
    torn.write_bytes(contents[damage])
    message = refusal(DataIntegrityError, root, **changes)
    assert message.startswith(f"{torn} cannot be decoded (")
    assert f"{len(contents[damage])} bytes" in message
    assert "another of its class in its place" in message  # so that there are as many, and the run's checkpoints load


@pytest.mark.parametrize(
    ("members", "said"),
    [
        (
            {"a.png": b"x", "a.cls": b"0", "b.png": b"x", "c.png": b"x"},
            "b (and 1 more) has an image but no label (.cls)",
        ),
        ({"a.png": b"x", "a.cls": b"0", "b.cls": b"0"}, "b has a label but no image"),
        ({"a.png": b"x", "a.cls": b"cat"}, "a.cls holds b'cat', not the number of a class"),
        ({"a.png": b"x", "a.cls": b""}, "a.cls holds b'', not the number of a class"),
        ({"a.png": b"x", "a.cls": b"-1"}, "a.cls holds b'-1', not the number of a class"),
        ({"a.png": b"x", "a.cls": b"9" * 30}, "a.cls holds b'99999999999999999999', not the number of a class"),
        ({"a.png": b"x", "a.jpg": b"x", "a.cls": b"0"}, "has more than one .jpg of a"),
        ({"readme.txt": b"x"}, "0.tar holds no images"),
        ({}, "0.tar holds no images"),
    ],
)
def test_a_shard_whose_members_do_not_fit_together_is_refused(
    tmp_path: Path, members: dict[str, bytes], said: str
) -> None:
    shard = tar(tmp_path / "train" / "0.tar", members)
    message = refusal(DataIntegrityError, tmp_path)
    assert str(shard) in message
    assert said in message
    assert not index_path(shard).exists()


def test_labels_that_are_no_class_are_named_with_their_picture(tmp_path: Path) -> None:
    labels = {f"{number}.cls": b"%d" % (number % 2) for number in range(4)}
    tar(tmp_path / "train" / "0.tar", {**{f"{number}.png": encoded(number) for number in range(4)}, **labels})
    tar(tmp_path / "val" / "0.tar", {"v.png": encoded(0), "v.cls": b"2"})
    message = refusal(DataIntegrityError, tmp_path)
    assert f"{tmp_path}/val/0.tar: v.png has label 2, but there are only 2 classes" in message
    (tmp_path / CLASS_NAMES).write_text("cat\n")
    assert "train/0.tar: 1.png has label 1, but there are only 1 classes" in refusal(DataIntegrityError, tmp_path)


def test_a_shard_that_is_cut_short_anywhere_is_refused_with_and_without_an_index(tmp_path: Path) -> None:
    root = shard_folder(tmp_path, [0, 1, 0], per_shard_megabytes=1)
    (shard,) = (root / "train").glob("*.tar")
    whole, index = shard.read_bytes(), index_path(shard).read_bytes()
    with tarfile.open(shard) as archive:
        second = archive.getmembers()[2]
    end = max(at for at in range(512, len(whole) + 1, 512) if whole[at - 512 : at].strip(b"\0"))
    # In a picture, in a header, between two members, and before the end marker.
    cuts = [second.offset_data + 100, second.offset + 100, second.offset, end]
    for cut in cuts:
        shard.write_bytes(whole[:cut])
        index_path(shard).write_bytes(index)
        assert f"{shard} has {cut} bytes, but its index describes {len(whole)}" in refusal(DataIntegrityError, root)
        index_path(shard).unlink()
        message = refusal(DataIntegrityError, root)
        assert f"{shard} is" in message
        assert "cut short" in message
    for content in (b"", b"no tar at all" * 100):
        shard.write_bytes(content)
        assert "is not a tar, or is cut short" in refusal(DataIntegrityError, root)


def test_a_damaged_index_is_refused_and_deleting_it_is_enough(tmp_path: Path) -> None:
    root = shard_folder(tmp_path, [0, 1, 0, 1], per_shard_megabytes=1)
    (index,) = (root / "train").glob("*.json")
    whole = index.read_bytes()
    fields = json.loads(whole)
    damaged = [
        b"",
        whole[:-40],
        b"[]",
        b"\xff" + whole,
        whole.replace(str(fields["offsets"][1]).encode(), str(fields["offsets"][1] + 512).encode()),
        json.dumps({**fields, "labels": [0, 1, 0]}).encode(),
        json.dumps({**fields, "version": 2}).encode(),
        json.dumps({**fields, "extra": 1}).encode(),
    ]
    for content in damaged:
        index.write_bytes(content)
        message = refusal(DataIntegrityError, root)
        assert f"{index} is not an index of version 1, or is damaged. Delete it" in message
    index.unlink()
    assert everything(sources(small(), root, CPU)[0])[1].tolist() == [0, 1, 0, 1]
    assert index.read_bytes() == whole


def test_data_that_changes_or_vanishes_while_it_is_read_is_said(tmp_path: Path) -> None:
    folder = image_folder(tmp_path / "f", {"train": {"a": 4}, "val": {"a": 1}})
    train, _ = sources(small(), folder, CPU)
    (folder / "train" / "a" / "1.png").unlink()
    with pytest.raises(DataIntegrityError, match=r"a/1.png is gone"):
        everything(train)
    (folder / "train" / "a" / "1.png").mkdir()
    with pytest.raises(PlaceError, match=r"a/1.png cannot be read: Is a directory"):
        everything(train)
    root = shard_folder(tmp_path / "s", [0, 1, 0, 1], per_shard_megabytes=1)
    train, _ = sources(small(), root, CPU)
    (shard,) = (root / "train").glob("*.tar")
    os.truncate(shard, 9000)  # in the second picture
    with pytest.raises(DataIntegrityError, match=r"00000.tar: picture001.png is cut short"):
        everything(train)
    train, _ = sources(small(), shard_folder(tmp_path / "gone", [0, 1, 0, 1]), CPU)
    for shard in (tmp_path / "gone" / "train").glob("*.tar"):
        shard.unlink()
    with pytest.raises(DataIntegrityError, match=r"00000.tar is gone"):
        everything(train)


class Deadly:
    """A store whose 31st picture kills the loader process that reads it."""

    classes: tuple[str, ...] = ("a",)
    labels = np.zeros(40, dtype=np.int64)

    def __init__(self) -> None:
        self._parent = os.getpid()

    def read(self, index: int) -> bytes:
        if index == 30 and os.getpid() != self._parent:
            os.kill(os.getpid(), signal.SIGKILL)
        return encoded(index)

    def name(self, index: int) -> str:
        return str(index)


def _said_when_a_process_dies(device: torch.device) -> tuple[str, str]:
    try:
        everything(streamed([Deadly()], small(loader_workers=1), device)[0])
    except PlaceError as error:
        return error.problem, error.remedy
    raise AssertionError("nothing was noticed")


@pytest.mark.thorough
@pytest.mark.parametrize("on_gpu", [False, True])
def test_a_loader_process_that_is_killed_ends_the_run_with_what_to_do(
    monkeypatch: pytest.MonkeyPatch, on_gpu: bool
) -> None:
    if on_gpu:
        for name, answer in {"is_available": True, "current_accelerator": CPU, "current_device_index": 0}.items():
            monkeypatch.setattr(torch.accelerator, name, lambda answer=answer: answer)
        # The thread that fetches for a GPU has ended, as it does where a dead process's batch cannot be had.
        monkeypatch.setattr("torch.utils.data._utils.pin_memory._pin_memory_loop", lambda *_: None)
    device = torch.device("cuda", 0) if on_gpu else CPU
    # In a thread, as Ray Train calls the training function: torch's handler of dead children is the main thread's, and
    # one that an earlier test has left there would raise out of turn.
    handler = signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    try:
        with ThreadPoolExecutor(1) as thread:
            problem, remedy = thread.submit(_said_when_a_process_dies, device).result(60)
        gc.collect()
    finally:
        signal.signal(signal.SIGCHLD, handler)
    assert "a process that decodes images has died" in problem
    assert "larger /dev/shm" in remedy


@pytest.mark.thorough
def test_a_loader_process_that_is_killed_between_two_passes_is_told_of_alike(tmp_path: Path) -> None:
    root = image_folder(tmp_path, {"train": {"a": 4}, "val": {"a": 1}})
    train, val = sources(small(loader_workers=1), root, CPU)
    before = set(multiprocessing.active_children())
    everything(train)
    (decoder,) = set(multiprocessing.active_children()) - before
    assert decoder.pid is not None
    os.kill(decoder.pid, signal.SIGKILL)
    decoder.join()
    with pytest.raises(LostProcessError, match="a process that decodes images has died"):
        everything(val)


def test_a_gpu_s_batches_cross_on_a_stream_of_their_own_that_computing_waits_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the rules of torch's page on CUDA semantics, on streams that only tell what they were asked for."""
    told: list[str] = []

    class Computing:
        def wait_stream(self, other: str) -> None:
            told.append(f"waits for {other}")

    @contextlib.contextmanager
    def stream(name: str) -> Iterator[None]:
        told.append(f"on {name}")
        yield
        told.append("off it")

    def to(tensor: Tensor, device: torch.device, non_blocking: bool) -> Tensor:
        assert non_blocking
        told.append(f"to {device}")
        return tensor

    gpu = torch.device("cuda", 0)
    monkeypatch.setattr(torch.cuda, "Stream", lambda device: f"copies of {device}")
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: Computing())
    monkeypatch.setattr(torch.cuda, "stream", stream)
    monkeypatch.setattr(Tensor, "to", to)
    monkeypatch.setattr(Tensor, "pin_memory", lambda tensor: tensor)
    monkeypatch.setattr(Tensor, "record_stream", lambda tensor, stream: told.append(type(stream).__name__))
    stored = stores(image_folder(tmp_path, {"train": {"a": 4}, "val": {"a": 1}}))
    train, _ = streamed(stored, small(), gpu)
    next(train.batches(slots(torch.arange(4), 4, 0, 1), 0))
    copied = [f"to {gpu}"] * 2
    assert told == [f"on copies of {gpu}", *copied, "off it", f"waits for copies of {gpu}", *["Computing"] * 2]


def test_an_epoch_that_was_given_up_does_not_go_on_with_what_came_after_it(tmp_path: Path) -> None:
    train, val = sources(small(), image_folder(tmp_path, {"train": {"a": 8}, "val": {"a": 4}}), CPU)
    first = train.batches(slots(torch.arange(8), 4, 0, 1), 0)
    next(first)
    everything(val)
    with pytest.raises(RuntimeError, match="begun with other images"):
        next(first)


DECODING = """
import multiprocessing, sys, time
from pathlib import Path
import torch
from tests.workloads.convnext.test_data import CPU, everything, small, sources
for split in sources(small(loader_workers=2), Path(sys.argv[1]), CPU):
    everything(split)
print(*(process.pid for process in multiprocessing.active_children()), flush=True)
time.sleep(600)
"""


def _parent(pid: int) -> int:
    return psutil.Process(pid).ppid()


@pytest.mark.thorough
def test_loader_processes_end_with_a_rank_that_is_killed_and_share_what_their_server_has_imported(
    tmp_path: Path,
) -> None:
    root = image_folder(tmp_path, {"train": {"a": 4}, "val": {"a": 1}})
    rank = subprocess.Popen([sys.executable, "-c", DECODING, str(root)], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    try:
        assert rank.stdout is not None
        decoders = [int(word) for word in rank.stdout.readline().split()]
        (server,) = {_parent(pid) for pid in decoders}
        assert len(decoders) == 2 and server != rank.pid and _parent(server) == rank.pid
        assert "libtorch" in Path(f"/proc/{server}/maps").read_text()
    finally:
        rank.kill()
        rank.communicate()
    try:
        eventually(lambda: not any(map(psutil.pid_exists, (server, *decoders))))
    finally:
        for pid in (server, *decoders):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def test_synthetic_images_need_no_place_and_differ_by_class() -> None:
    train, val = sources(small(data=SYNTHETIC, batch_size=400), None, CPU)
    assert (len(train), len(val)) == (1600, 256)
    batch: Batch = next(train.batches(slots(torch.arange(20), 20, 0, 1), 0))
    assert (batch.images.shape, batch.images.dtype, batch.labels.tolist()) == (
        (20, 3, 32, 32),
        torch.uint8,
        [*range(10)] * 2,
    )
    apart = (batch.images[:10].float() - batch.images[10:].float()).abs().mean()
    mixed = (batch.images[:10].float() - batch.images[10:].roll(1, 0).float()).abs().mean()
    assert apart < mixed
