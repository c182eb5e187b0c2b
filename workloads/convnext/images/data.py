"""The two splits of a run's data: streamed from folders or shards, resident on the device, or made up (`synthetic`)."""

from __future__ import annotations

import stat
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from torch import Tensor

from workloads.convnext.config import TrainConfig
from workloads.convnext.images import location
from workloads.convnext.images.folder import FolderPictures, class_folders
from workloads.convnext.images.pictures import LAYOUT, PictureStore, unreadable
from workloads.convnext.images.sampling import Batch, Slot, Source
from workloads.convnext.images.shards import ShardPictures, shard_files
from workloads.convnext.images.stream import StreamedImages, streamed
from workloads.convnext.memory import exhausted
from workloads.errors import UsageError

SYNTHETIC_CLASSES = 10

_listed: dict[Path, tuple[PictureStore, PictureStore]] = {}
"""In a worker: what was listed before the ranks met. A node that sees a mounted bucket for the first time may take
minutes longer than one that has it in memory."""


class ResidentImages:
    """All images of a split as one uint8 tensor on the device: no loader and no copies."""

    def __init__(self, images: Tensor, labels: Tensor, classes: Sequence[str]) -> None:
        """Take the images as they are.

        Args:
            images: uint8 [N, 3, S, S].
            labels: int64 [N], on the same device.
            classes: their names.
        """
        self.classes = tuple(classes)
        self._images = images
        self._labels = labels

    def __len__(self) -> int:
        return len(self._labels)

    def batches(self, slots: Sequence[Slot], epoch: int) -> Iterator[Batch]:
        for slot in slots:
            # From memory that is not pinned the copy would wait for all that the GPU still has to compute.
            ready = slot.pinned() if self._images.is_cuda else slot
            indices = ready.indices.to(self._images.device, non_blocking=True)
            yield Batch(self._images[indices], self._labels[indices], ready)


def _synthetic(config: TrainConfig, device: torch.device) -> tuple[Source, Source]:
    # Each class is one fixed random picture under noise: learnable, so that a run on it can be seen to work.
    generator = torch.Generator().manual_seed(config.seed)
    prototypes = torch.randint(0, 256, (SYNTHETIC_CLASSES, 3, 8, 8), generator=generator, dtype=torch.uint8)

    def split(count: int) -> ResidentImages:
        labels = torch.arange(count) % SYNTHETIC_CLASSES
        noise = torch.randint(0, 128, (count, 3, 8, 8), generator=generator, dtype=torch.int64)
        images = (prototypes[labels].long() // 2 + noise).to(torch.uint8).to(device)
        images = torch.nn.functional.interpolate(images, size=(config.image_size, config.image_size))
        names = [str(number) for number in range(SYNTHETIC_CLASSES)]
        return ResidentImages(images, labels.to(device), names)

    # Several steps to an epoch, so that its evaluation is a small part of it.
    return split(max(1024, 4 * config.batch_size)), split(256)


def prepare(data: str) -> None:
    """Copy and list what `sources` will give, and keep it for that; raises as `location.fetch` and `sources` do."""
    root = location.fetch(data)
    if root is not None:
        _listed[root] = stores(root)


def sources(config: TrainConfig, root: Path | None, device: torch.device) -> tuple[Source, Source]:
    """The training and the validation split.

    Args:
        config: which data, how it is decoded and augmented.
        root: the image folder or the shards; None for `synthetic`.
        device: where resident images live.

    Raises:
        UsageError: nothing there, a batch larger than the training split, or resident images beyond the memory.
        DataIntegrityError: a class without images, a damaged shard, or an image that cannot be decoded.
        PlaceError: the data cannot be read.
    """
    try:
        train, val = _synthetic(config, device) if root is None else _stored(config, root, device)
    except (MemoryError, RuntimeError) as error:
        if not exhausted(error):
            raise
        raise UsageError(
            f"the images of {config.data}, all of them decoded to {config.image_size} x {config.image_size} pixels, do "
            "not fit the memory of a worker's device.",
            "Choose a smaller image_size, or stream the stored images with --set resident=false.",
        ) from error
    if config.batch_size > len(train):
        location.refuse_batch(config.data, config.batch_size, len(train))
    return train, val


def _stored(config: TrainConfig, root: Path, device: torch.device) -> tuple[Source, Source]:
    stored, held_out = _listed.pop(root, None) or stores(root)
    train, val = streamed((stored, held_out), config, device)
    if not config.resident:
        return train, val

    def resident(split: StreamedImages) -> ResidentImages:
        images, labels = split.decoded()
        return ResidentImages(images.to(device), labels.to(device), split.classes)

    return resident(train), resident(val)


def stores(root: Path) -> tuple[PictureStore, PictureStore]:
    """The pictures of the training and of the validation split, listed and not opened.

    Raises:
        As `sources`.
    """
    try:
        if not _is_folder(root):
            raise UsageError(f"the data path {root} does not exist.", location.REMEDY)
        train = _store(root / "train", None)
        return train, _store(root / "val", train.classes)
    except OSError as error:
        raise unreadable(str(error.filename or root), error) from error


def _is_folder(path: Path) -> bool:
    # Path.is_dir says no also where the file system fails, from Python 3.14 on.
    try:
        return stat.S_ISDIR(path.stat().st_mode)
    except (FileNotFoundError, NotADirectoryError):
        return False


def _store(folder: Path, known: Sequence[str] | None) -> PictureStore:
    if not _is_folder(folder):
        raise UsageError(f"{folder.parent} holds no folder {folder.name!r}.", LAYOUT)
    shards, classes = shard_files(folder), class_folders(folder)
    if shards and classes:
        raise UsageError(f"{folder} holds both shards and class folders.", "Keep one of the two.")
    return ShardPictures(folder, known) if shards else FolderPictures(folder, known)
