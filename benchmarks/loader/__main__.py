"""Times the way from JPEGs on disk to altered images beside other loaders: `python -m benchmarks.loader`.

Ours, torchvision's, timm's and webdataset's take turns in one process on one core, on the same pictures, each as its
documentation sets it up: crop, mirror, RandAugment, erasing, mixing. timm resizes bicubically and has operations of its
own; webdataset has torchvision's. `host`: as far as the loader's
processes go. `whole`: with what follows on the device, here the same core, which a GPU spares. Images per second of
processor time, medians of the rounds; `times` is ours over theirs, round by round. Then two processes of ours and of
torchvision's: seconds until the first batch is there, and memory. Results go to benchmarks/loader.json.
`--photos FOLDER` writes an image folder of such pictures, 100 classes to learn, and measures nothing.
"""

from __future__ import annotations

import dataclasses
import multiprocessing
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
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

from benchmarks.harness import command
from benchmarks.harness.figures import Record, conditions, median_and_range, say
from benchmarks.loader import photos
from workloads import __main__ as command_line
from workloads.convnext.config import imagenet_a3_ultra
from workloads.convnext.images.augment import DEVIATION, MEAN, DeviceAugmentation
from workloads.convnext.images.data import stores
from workloads.convnext.images.sampling import slots
from workloads.convnext.images.stream import streamed

RESULTS = Path(__file__).parent.with_suffix(".json")

BATCH = 50
CONFIG = dataclasses.replace(imagenet_a3_ultra(), loader_workers=0)
CLASSES = len(photos.TEXTURES) * len(photos.SHAPES)
ERASING = CONFIG.random_erasing
SCALED_MEAN, SCALED_DEVIATION = ([level / 255 for level in levels] for levels in (MEAN, DEVIATION))

Loader = Callable[[Path, bool, int], Iterable[Any]]
"""Batches from a folder that holds `images` and `shards`, the whole way or the host's part, with so many processes."""


def oasis(data: Path, whole: bool, processes: int) -> Iterator[Any]:
    """Ours, from the shards."""
    config = dataclasses.replace(CONFIG, loader_workers=processes)
    train, _ = streamed(stores(data / "shards"), config)
    augment = DeviceAugmentation(config, CLASSES, torch.device("cpu"))
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
        auto_augment="rand-m9-mstd0.5-inc1",
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
    device = torch.device("cpu")
    mean, deviation = tuple(SCALED_MEAN), tuple(SCALED_DEVIATION)
    prefetched = PrefetchLoader(loader, mean=mean, std=deviation, device=device, re_prob=ERASING, re_mode="pixel")
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


def rates(data: Path, images: int, rounds: int) -> Record:
    """Images per second of processor time of each loader, and how many times theirs ours is."""
    found: Record = {}
    for part in ("host", "whole"):
        seen: dict[str, list[float]] = {name: [] for name in LOADERS}
        for number in range(rounds + 1):
            for name, loader in LOADERS.items():
                begun = time.process_time()
                count = sum(1 for _ in loader(data, part == "whole", 0))
                rate = images / (time.process_time() - begun)
                assert count == images // BATCH, (name, count)
                if number:  # the first round warms up
                    seen[name].append(rate)
                    say(f"{part}: {name} {rate:.0f} images/s")
        found[part] = {name: median_and_range(rates, 0) for name, rates in seen.items()} | {
            "times": {
                name: median_and_range([ours / one for ours, one in zip(seen["oasis"], rates, strict=True)])
                for name, rates in seen.items()
                if name != "oasis"
            }
        }
    return found


def started(data: Path, name: str) -> tuple[float, float]:
    """Seconds until two processes have given the first batch, and MiB of each, shared pages by their share."""
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


def apart(data: Path, name: str) -> tuple[float, float]:
    """`started` in a process of its own, which has not started a server for decoders before."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        return pool.submit(started, data, name).result()


def main(arguments: Sequence[str] | None = None) -> int:
    """Run, print and keep."""
    parser = command.parser(RESULTS, __doc__)
    parser.add_argument("--rounds", type=int, default=5, metavar="N", help="of all loaders in turn (%(default)s)")
    parser.add_argument("--each", type=int, default=3, metavar="N", help="pictures of each class (%(default)s)")
    parser.add_argument("--photos", type=Path, metavar="FOLDER", help="write pictures there, a fifth for validation")
    given = parser.parse_args(arguments)
    if given.photos:
        photos.write(given.photos, given.each, max(1, given.each // 5))
        say(f"wrote {CLASSES} classes of {given.each} pictures to learn from to {given.photos}")
        return 0
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="oasis-loader-") as folder:
        data = Path(folder)
        photos.write(data / "images", given.each, 1)
        packed = ["shards", "--from", str(data / "images"), "--to", str(data / "shards"), "--shard-megabytes", "5"]
        assert command_line.main(packed) == 0
        found = conditions() | {"pictures": given.each * CLASSES}
        found |= rates(data, given.each * CLASSES, given.rounds)
        for name in ("oasis", "torchvision"):
            starts = [apart(data, name) for _ in range(given.rounds)]
            found[f"two processes of {name}"] = {
                what: median_and_range(values)
                for what, values in zip(
                    ("seconds to the first batch", "MiB each"), zip(*starts, strict=True), strict=True
                )
            }
    return command.conclude(given.results, found)


if __name__ == "__main__":
    command.run(main)
