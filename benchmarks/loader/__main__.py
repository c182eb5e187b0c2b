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

import multiprocessing
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import torch

from benchmarks.harness import command
from benchmarks.harness.figures import Record, conditions, median_and_range, say
from benchmarks.loader import loaders, photos
from workloads import __main__ as command_line

RESULTS = Path(__file__).parent.with_suffix(".json")


def rates(data: Path, images: int, rounds: int) -> Record:
    """Images per second of processor time of each loader, and how many times theirs ours is."""
    found: Record = {}
    for part in ("host", "whole"):
        seen: dict[str, list[float]] = {name: [] for name in loaders.LOADERS}
        for number in range(rounds + 1):
            for name, loader in loaders.LOADERS.items():
                begun = time.process_time()
                count = sum(1 for _ in loader(data, part == "whole", 0))
                rate = images / (time.process_time() - begun)
                assert count == images // loaders.BATCH, (name, count)
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


def apart(data: Path, name: str) -> tuple[float, float]:
    """`loaders.started` in a process of its own, which has not started a server for decoders before."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        return pool.submit(loaders.started, data, name).result()


def main(arguments: Sequence[str] | None = None) -> int:
    """Run, print and keep."""
    parser = command.parser(RESULTS, __doc__)
    parser.add_argument("--rounds", type=int, default=5, metavar="N", help="of all loaders in turn (%(default)s)")
    parser.add_argument("--each", type=int, default=3, metavar="N", help="pictures of each class (%(default)s)")
    parser.add_argument("--photos", type=Path, metavar="FOLDER", help="write pictures there, a fifth for validation")
    given = parser.parse_args(arguments)
    if min(given.rounds, given.each) < 1:
        parser.error(f"--rounds is {given.rounds} and --each is {given.each}, but both must be at least 1")
    if given.photos and given.photos.exists() and (not given.photos.is_dir() or any(given.photos.iterdir())):
        parser.error(f"--photos {given.photos} is there and not an empty folder; name another one")
    if given.photos:
        photos.write(given.photos, given.each, max(1, given.each // 5))
        say(f"wrote {loaders.CLASSES} classes of {given.each} pictures to learn from to {given.photos}")
        return 0
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="oasis-loader-") as folder:
        data = Path(folder)
        photos.write(data / "images", given.each, 1)
        packed = ["shards", "--from", str(data / "images"), "--to", str(data / "shards"), "--shard-megabytes", "5"]
        assert command_line.main(packed) == 0
        found = conditions() | {"pictures": given.each * loaders.CLASSES}
        found |= rates(data, given.each * loaders.CLASSES, given.rounds)
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
