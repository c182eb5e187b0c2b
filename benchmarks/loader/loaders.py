"""Loaders of JPEGs, ours and others', each as its documentation sets it up."""

from __future__ import annotations

import dataclasses
import multiprocessing
import statistics
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import psutil
import torch
from timm.data.loader import PrefetchLoader, fast_collate
from timm.data.mixup import Mixup
from timm.data.transforms_factory import create_transform
from torch.utils.data import DataLoader, default_collate
from torchvision.datasets import ImageFolder
from torchvision.transforms import v2
from webdataset.compat import WebDataset

from benchmarks.loader import photos
from workloads.convnext.config import imagenet_a3_ultra
from workloads.convnext.images.augment import DEVIATION, MEAN, DeviceAugmentation
from workloads.convnext.images.data import stores
from workloads.convnext.images.sampling import slots
from workloads.convnext.images.stream import streamed

BATCH = 50
CONFIG = dataclasses.replace(imagenet_a3_ultra(), loader_workers=0)
CLASSES = len(photos.TEXTURES) * len(photos.SHAPES)
CPU = torch.device("cpu")
ERASING = CONFIG.random_erasing
SCALED_MEAN, SCALED_DEVIATION = ([level / 255 for level in levels] for levels in (MEAN, DEVIATION))

TIMM_RANDAUGMENT = "rand-m7-mstd0.5-inc1"
"""Its recipe has m9, with which timm 1.0.31 may ask for 0 bits of a colour, which Pillow 13 refuses."""

Loader = Callable[[Path, bool, int], Iterable[Any]]
"""Batches from a folder that holds `images` and `shards`, the whole way or the host's part, with so many processes."""


def oasis(data: Path, whole: bool, processes: int) -> Iterator[Any]:
    """Ours, from the shards."""
    config = dataclasses.replace(CONFIG, loader_workers=processes)
    train, _ = streamed(stores(data / "shards"), config, CPU)
    augment = DeviceAugmentation(config, CLASSES, CPU)
    for batch in train.batches(slots(torch.randperm(len(train)), BATCH, 0, 1), 0):
        yield augment(batch.images, batch.labels, batch.slot.indices, 0) if whole else batch


def torchvision_transform() -> v2.Compose:
    """That of references/classification/presets.py, on Pillow's pictures."""
    return v2.Compose(
        [
            v2.RandomResizedCrop(CONFIG.image_size, antialias=True),
            v2.RandomHorizontalFlip(),
            v2.RandAugment(magnitude=CONFIG.randaugment, interpolation=v2.InterpolationMode.BILINEAR),
            v2.PILToTensor(),
            v2.ToDtype(torch.float, scale=True),
            v2.Normalize(SCALED_MEAN, SCALED_DEVIATION),
            v2.RandomErasing(p=ERASING),
        ]
    )


def mixing() -> v2.RandomChoice:
    """That of the same references, which do it where batches are collated."""
    return v2.RandomChoice(
        [one(alpha=alpha, num_classes=CLASSES) for one, alpha in ((v2.MixUp, 0.8), (v2.CutMix, 1.0))]
    )


def torchvision(data: Path, whole: bool, processes: int) -> Iterable[Any]:
    """torchvision's ImageFolder and transforms in torch's DataLoader."""
    images, mix = ImageFolder(data / "images" / "train", torchvision_transform()), mixing()
    return DataLoader(
        images,
        BATCH,
        shuffle=True,
        num_workers=processes,
        collate_fn=lambda batch: mix(*default_collate(batch)) if whole else default_collate(batch),
    )


def timm(data: Path, whole: bool, processes: int) -> Iterator[Any]:
    """timm's transform, collation, prefetcher and mixing, as its train.py puts them together."""
    transform: Any = create_transform(
        CONFIG.image_size,
        is_training=True,
        use_prefetcher=True,
        auto_augment=TIMM_RANDAUGMENT,
        interpolation="bicubic",
        mean=tuple(SCALED_MEAN),
        std=tuple(SCALED_DEVIATION),
    )
    images = ImageFolder(data / "images" / "train", transform)
    loader = DataLoader(images, BATCH, shuffle=True, num_workers=processes, collate_fn=fast_collate)
    if not whole:
        yield from loader
        return
    mix = Mixup(mixup_alpha=0.8, cutmix_alpha=1.0, label_smoothing=0.1, num_classes=CLASSES)
    mean, deviation = tuple(SCALED_MEAN), tuple(SCALED_DEVIATION)
    prefetched = PrefetchLoader(loader, mean=mean, std=deviation, device=CPU, re_prob=ERASING, re_mode="pixel")
    for pixels, labels in prefetched:
        yield mix(pixels, labels)


def webdataset(data: Path, whole: bool, processes: int) -> Iterator[Any]:
    """webdataset's pipeline over the shards, with torchvision's transforms."""
    urls = [str(file) for file in sorted((data / "shards" / "train").glob("*.tar"))]
    pictures: Any = WebDataset(urls, shardshuffle=False).decode("pil").to_tuple("jpg", "cls")
    mix = mixing()
    for pixels, labels in pictures.map_tuple(torchvision_transform()).batched(BATCH):
        yield mix(pixels, torch.as_tensor(labels)) if whole else (pixels, labels)


LOADERS: dict[str, Loader] = {"oasis": oasis, "torchvision": torchvision, "timm": timm, "webdataset": webdataset}


def started(data: Path, name: str) -> tuple[float, float]:
    """Seconds until two processes have given the first batch, and MiB of each, shared pages by their share."""
    multiprocessing.set_start_method("fork", force=True)  # a DataLoader's default, and not a spawned process's
    begun = time.monotonic()
    batches = iter(LOADERS[name](data, False, 2))
    next(batches)
    seconds = time.monotonic() - begun
    family = psutil.Process().children(recursive=True)
    decoding = [one for one in family if not one.children() and "resource_tracker" not in " ".join(one.cmdline())]
    memory = statistics.mean(one.memory_full_info().pss for one in decoding) / 2**20
    for _ in batches:
        pass
    return seconds, memory
