"""Writes scikit-learn's 1,797 handwritten digits as images or tar shards: real data for a demo, without a download.

Which digit is held out for validation depends on its number alone, so that every run writes the same 1,437 and 360.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import mimetypes
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from google.api_core import exceptions as google
from google.auth.exceptions import GoogleAuthError
from PIL import Image
from sklearn.datasets import load_digits

from workloads.convnext.images.pack import Picture, write_split
from workloads.errors import EXIT_OK, AuthError, PlaceError, UsageError, first_line
from workloads.reporting import progress
from workloads.storage import client as storage_client
from workloads.storage.folders import bucket_and_path

VALIDATION = 360
"""Digits held out: a fifth of them, the usual share."""

CONNECTIONS = 8
"""Uploads at a time; within the connection pool of ten that google-cloud-storage's HTTP session has."""


def images() -> Iterator[tuple[str, bytes]]:
    """Every digit as `train/<class>/<number>.png` or `val/<class>/<number>.png`, with its 8 x 8 grey PNG."""
    pixels, labels = (np.asarray(part) for part in load_digits(return_X_y=True))
    # A digest orders the digits the same way on every machine and version, which a library's random generator does not.
    numbers = sorted(range(len(labels)), key=lambda number: hashlib.sha256(str(number).encode()).digest())
    held_out = frozenset(numbers[:VALIDATION])
    for number, (row, label) in enumerate(zip(pixels, labels, strict=True)):
        png = io.BytesIO()
        Image.fromarray((row.reshape(8, 8) * (255 / 16)).round().astype(np.uint8)).save(png, format="PNG")
        yield f"{'val' if number in held_out else 'train'}/{label}/{number:04d}.png", png.getvalue()


def shards() -> Iterator[tuple[str, bytes]]:
    """The same digits as tar shards: `train/00000.tar` and `val/00000.tar`, with their indices."""
    every = [(Path(name), content) for name, content in images()]
    with tempfile.TemporaryDirectory() as place:
        for split in ("train", "val"):
            pictures = (
                Picture(path.stem, path.suffix, content, int(path.parent.name))
                for path, content in every
                if path.parts[0] == split
            )
            write_split(pictures, Path(place) / split)
            for file in sorted((Path(place) / split).iterdir()):
                yield f"{split}/{file.name}", file.read_bytes()


def write(to: str, say: Callable[[str], None], sharded: bool = False) -> tuple[int, int]:
    """Write what is not there yet.

    Args:
        to: `gs://BUCKET/PREFIX` or a local folder.
        say: told of the progress.
        sharded: write tar shards instead of an image folder.

    Returns:
        How many files were written and how many there are.

    Raises:
        UsageError: the address has another scheme or no bucket.
        AuthError: the bucket may not be written.
        PlaceError: the bucket does not exist or does not answer, or the disk refuses.
    """
    files = shards() if sharded else images()
    if to.startswith("gs://"):
        bucket, path = bucket_and_path(to)
        return _upload(bucket, path.strip("/"), say, files)
    if "://" in to:
        raise UsageError(f"{to!r} is neither gs://BUCKET/PREFIX nor a local folder.", "Use one of the two.")
    return _save(Path(to), say, files)


def _save(folder: Path, say: Callable[[str], None], files: Iterator[tuple[str, bytes]]) -> tuple[int, int]:
    written = total = 0
    try:
        for name, content in files:
            path = folder / name
            total += 1
            if path.is_file() and path.read_bytes() == content:
                continue
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
            written += 1
    except OSError as error:
        raise PlaceError(
            f"cannot write to {folder}: {error}.", "Free some space there, or name another folder."
        ) from error
    say(f"{written} of {total} files written to {folder}, the others were there already")
    return written, total


def _upload(
    bucket_name: str, prefix: str, say: Callable[[str], None], files: Iterator[tuple[str, bytes]]
) -> tuple[int, int]:
    start = f"{prefix}/" if prefix else ""
    try:
        bucket = storage_client.connect().bucket(bucket_name)
        present = {blob.name: blob.size for blob in bucket.list_blobs(prefix=start)}
        every = [(start + name, content) for name, content in files]
        # What is written is the same every time, so the same name and size is the same file.
        missing = [(name, content) for name, content in every if present.get(name) != len(content)]

        def put(item: tuple[str, bytes]) -> None:
            bucket.blob(item[0]).upload_from_string(item[1], content_type=mimetypes.guess_type(item[0])[0] or "")

        with ThreadPoolExecutor(CONNECTIONS) as pool:
            for number, _ in enumerate(pool.map(put, missing), start=1):
                if number % 300 == 0 or number == len(missing):
                    say(f"{number} of {len(missing)} files uploaded to gs://{bucket_name}/{prefix}")
    except google.NotFound as error:
        raise PlaceError(f"there is no bucket {bucket_name}.", "Take data_uri from the stack's outputs.") from error
    except (google.Forbidden, google.Unauthorized, GoogleAuthError) as error:
        raise AuthError(
            f"gs://{bucket_name} may not be written: {first_line(error)}.",
            "It needs roles/storage.objectUser.",
        ) from error
    except (google.GoogleAPICallError, google.RetryError, OSError) as error:
        raise PlaceError(
            f"gs://{bucket_name} does not answer: {first_line(error)}.", "Run the command again."
        ) from error
    if not missing:
        say(f"all {len(every)} files were in gs://{bucket_name}/{prefix} already")
    return len(missing), len(every)


def add_digits_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `python -m workloads digits`."""
    parser.add_argument("--to", required=True, metavar="PLACE", help="gs://BUCKET/PREFIX or a local folder")
    parser.add_argument("--shards", action="store_true", help="write tar shards instead of an image folder")


def run_digits(args: argparse.Namespace) -> int:
    """Write the digits where `--to` says; returns the exit code."""
    write(args.to, progress.note, args.shards)
    return EXIT_OK
