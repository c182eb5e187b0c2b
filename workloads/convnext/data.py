"""The two splits of a run's data: streamed from a folder, resident on the device, or made up (`synthetic`)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from torch import Tensor

from workloads.convnext.config import Augmentation, TrainConfig
from workloads.convnext.folder import FolderImages
from workloads.convnext.sampling import Batch, Slot, Source, chance
from workloads.errors import UsageError

SYNTHETIC = "synthetic"
SYNTHETIC_CLASSES = 10


class ResidentImages:
    """All images of a split as one uint8 tensor on the device: no loader, no copies, augmentation by indexing."""

    def __init__(
        self, images: Tensor, labels: Tensor, classes: Sequence[str], augmentation: Augmentation, seed: int
    ) -> None:
        self.classes = tuple(classes)
        self._images = images
        self._labels = labels
        self._augmentation = augmentation
        self._seed = seed

    def __len__(self) -> int:
        return len(self._labels)

    def batches(self, slots: Sequence[Slot], epoch: int) -> Iterator[Batch]:
        for slot in slots:
            indices = slot.indices.to(self._images.device)
            images = self._images[indices]
            if self._augmentation != "none":
                images = self._augmented(images, indices, epoch)
            yield Batch(images, self._labels[indices], slot)

    def _augmented(self, images: Tensor, indices: Tensor, epoch: int) -> Tensor:
        reach = images.shape[-1] // 16
        down, across, mirror = (chance(indices, self._seed, epoch * 3 + draw) for draw in range(3))
        shifted = _shift(images, down % (2 * reach + 1) - reach, across % (2 * reach + 1) - reach)
        if self._augmentation == "shift":
            return shifted
        return torch.where((mirror % 2 == 1).view(-1, 1, 1, 1), shifted.flip(-1), shifted)


def _shift(images: Tensor, down: Tensor, across: Tensor) -> Tensor:
    # The border is repeated rather than wrapped round or blackened: a digit's background stays background.
    count, _, height, width = images.shape
    rows = (torch.arange(height, device=images.device) - down[:, None]).clamp(0, height - 1)
    columns = (torch.arange(width, device=images.device) - across[:, None]).clamp(0, width - 1)
    picture = torch.arange(count, device=images.device)[:, None, None]
    return images.permute(0, 2, 3, 1)[picture, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2)


def _synthetic(config: TrainConfig, device: torch.device) -> tuple[Source, Source]:
    # Each class is one fixed random picture under noise: learnable, so that a run on it can be seen to work.
    generator = torch.Generator().manual_seed(config.seed)
    prototypes = torch.randint(0, 256, (SYNTHETIC_CLASSES, 3, 8, 8), generator=generator, dtype=torch.uint8)

    def split(count: int) -> ResidentImages:
        labels = torch.arange(count) % SYNTHETIC_CLASSES
        noise = torch.randint(0, 128, (count, 3, 8, 8), generator=generator, dtype=torch.int64)
        images = (prototypes[labels].long() // 2 + noise).to(torch.uint8)
        images = torch.nn.functional.interpolate(images, size=(config.image_size, config.image_size))
        names = [str(number) for number in range(SYNTHETIC_CLASSES)]
        return ResidentImages(images.to(device), labels.to(device), names, config.augmentation, config.seed)

    return split(max(1024, config.batch_size)), split(256)


def sources(config: TrainConfig, root: Path | None, device: torch.device) -> tuple[Source, Source]:
    """The training and the validation split.

    Args:
        config: which data, how it is decoded and augmented.
        root: the image folder; None for `synthetic`.
        device: where resident images live.

    Raises:
        UsageError: nothing there, or a batch larger than the training split.
        DataIntegrityError: a class without images, or an image that cannot be decoded.
    """
    train: Source
    val: Source
    if root is None:
        train, val = _synthetic(config, device)
    else:
        train, val = _folders(config, root, device)
    if config.batch_size > len(train):
        raise UsageError(
            f"batch_size is {config.batch_size}, but {config.data} has {len(train)} training images.",
            f"Choose --batch-size {len(train)} or less.",
        )
    return train, val


def _folders(config: TrainConfig, root: Path, device: torch.device) -> tuple[Source, Source]:
    train = FolderImages(root, "train", config)
    val = FolderImages(root, "val", config, train.classes)
    if not config.resident:
        return train, val

    def resident(split: FolderImages, augmentation: Augmentation) -> ResidentImages:
        images, labels = split.decoded()
        return ResidentImages(images.to(device), labels.to(device), split.classes, augmentation, config.seed)

    return resident(train, config.augmentation), resident(val, "none")
