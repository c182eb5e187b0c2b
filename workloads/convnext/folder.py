"""Image folders: `train/<class>/*` and `val/<class>/*`, listed when opened, decoded when asked for.

Every mistake a folder can hold is found here, and named with its path.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from PIL import Image, UnidentifiedImageError
from torch import Tensor
from torch.utils.data import DataLoader, Dataset
from torchvision.transforms import v2

from workloads.convnext.config import TrainConfig
from workloads.convnext.sampling import Batch, Slot, chance
from workloads.errors import DataIntegrityError, UsageError

SUFFIXES = frozenset({".png", ".jpg", ".jpeg"})
LAYOUT = "Lay it out as train/<class>/*.png and val/<class>/*.png (or .jpg)."


class FolderImages(Dataset[tuple[Tensor, int]]):
    """One split of an image folder, decoded when asked for."""

    def __init__(self, root: Path, split: str, config: TrainConfig, classes: Sequence[str] | None = None) -> None:
        """List the images, without opening them.

        Args:
            root: folder that holds the splits.
            split: `train`, which is augmented, or `val`, which is not.
            config: image size, augmentation, seed.
            classes: the training split's classes, when this is another split.

        Raises:
            UsageError: the folder or the split is missing or empty.
            DataIntegrityError: a class has no images, or is unknown to the training split.
        """
        self.paths, self.labels, self.classes = _listing(root, split, classes)
        self._seed = config.seed
        self._resident = config.resident
        self._epoch = 0
        self._train = split == "train"
        self._workers = config.loader_workers
        self._transform = _transform(config, cropped=self._train and config.augmentation == "crop-flip")

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        image = decode(self.paths[index])
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(int(chance(torch.tensor([index]), self._seed, self._epoch)))
            return self._transform(image), self.labels[index]

    def batches(self, slots: Sequence[Slot], epoch: int) -> Iterator[Batch]:
        self._epoch = epoch
        loader = DataLoader(
            self,
            batch_sampler=[slot.indices.tolist() for slot in slots],
            num_workers=self._workers,
            pin_memory=torch.cuda.is_available(),
            prefetch_factor=4 if self._workers else None,
        )
        for (images, labels), slot in zip(loader, slots, strict=True):
            yield Batch(images, labels, slot)

    def decoded(self) -> tuple[Tensor, Tensor]:
        """All images, uint8 [N, 3, H, W], and their labels, without augmentation."""
        return torch.stack([self._transform(decode(path)) for path in self.paths]), torch.tensor(self.labels)


def _transform(config: TrainConfig, cropped: bool) -> v2.Compose:
    size = config.image_size
    if cropped and not config.resident:
        steps = [v2.RandomResizedCrop(size, antialias=True), v2.RandomHorizontalFlip()]
    elif config.augmentation == "crop-flip":
        # Resize to 8/7 of the crop, as the ImageNet protocol's 256 to 224.
        steps = [v2.Resize(size * 8 // 7, antialias=True), v2.CenterCrop(size)]
    else:
        steps = [v2.Resize((size, size), antialias=True)]
    return v2.Compose([v2.PILToTensor(), *steps])


def decode(path: Path) -> Image.Image:
    """Read one image as RGB.

    Raises:
        DataIntegrityError: the file is no image, or ends too early.
    """
    try:
        with Image.open(path) as image:
            return image.convert("RGB")
    except (UnidentifiedImageError, OSError, SyntaxError, ValueError) as error:
        raise DataIntegrityError(
            f"{path} cannot be decoded ({error}; {path.stat().st_size if path.exists() else 0} bytes).",
            "Write this image again, or delete it, and run the same command again.",
        ) from error


def _listing(root: Path, split: str, known: Sequence[str] | None) -> tuple[list[Path], list[int], tuple[str, ...]]:
    folder = root / split
    if not root.is_dir():
        raise UsageError(f"the data path {root} does not exist.", "Name another with --data, or write the data first.")
    if not folder.is_dir():
        raise UsageError(f"{root} holds no folder {split!r}.", LAYOUT)
    names = sorted(entry.name for entry in folder.iterdir() if entry.is_dir() and not entry.name.startswith("."))
    if not names:
        raise UsageError(f"{folder} holds no classes.", LAYOUT)
    strangers = sorted(set(names) - set(known if known is not None else names))
    if strangers:
        raise DataIntegrityError(f"{folder} has classes that train/ lacks: {', '.join(strangers[:5])}.", LAYOUT)
    classes = tuple(known if known is not None else names)
    paths: list[Path] = []
    labels: list[int] = []
    for name in names:
        found = sorted(entry for entry in (folder / name).iterdir() if entry.suffix.lower() in SUFFIXES)
        if not found:
            raise DataIntegrityError(
                f"class {name!r} has no images in {folder / name}.", "Add images or remove the class."
            )
        paths += found
        labels += [classes.index(name)] * len(found)
    return paths, labels, classes
