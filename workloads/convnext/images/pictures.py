"""One stored picture: where a split keeps it, and from its bytes to RGB whatever mode it was written in.

An error in a picture is reported with its name, in a process that may be the loader's.
"""

from __future__ import annotations

import io
import struct
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError

from workloads.errors import DataIntegrityError, PlaceError, WorkloadError

SUFFIXES = frozenset({".png", ".jpg", ".jpeg"})

READERS = 16
"""Folders listed, or indices read, at a time: on a mounted bucket each waits for a round trip."""

LAYOUT = (
    "Lay it out as train/<class>/*.png and val/<class>/*.png (or .jpg), or as train/*.tar and val/*.tar with "
    "<key>.png (or .jpg) and <key>.cls in them."
)

DAMAGE = (OSError, SyntaxError, ValueError, struct.error, Image.DecompressionBombError)
"""What Pillow's parsers raise on bytes that are not what they look like."""

BACKGROUND = "white"
"""What a transparent picture is laid on: dropping its alpha would show the colours that its author hid."""


class PictureStore(Protocol):
    """The pictures of one split, as stored on disk. A copy in another process reads independently."""

    classes: tuple[str, ...]
    labels: NDArray[np.int64]
    """Class of each picture, as an index of `classes`."""

    def read(self, index: int) -> bytes:
        """The encoded picture; raises DataIntegrityError if it is not all there, PlaceError if the disk refuses."""
        ...

    def name(self, index: int) -> str:
        """A name by which a person finds the picture."""
        ...


def decode(store: PictureStore, index: int) -> Image.Image:
    """Read one JPEG or PNG as RGB.

    Raises:
        DataIntegrityError: it is neither, or ends too early.
        PlaceError: it cannot be read.
    """
    content = store.read(index)
    try:
        picture = Image.open(io.BytesIO(content), formats=("JPEG", "PNG"))
        picture.load()
        return _rgb(picture)
    except DAMAGE as error:
        reason = "neither JPEG nor PNG" if isinstance(error, UnidentifiedImageError) else str(error)
        raise DataIntegrityError(
            f"{store.name(index)} cannot be decoded ({reason}; {len(content)} bytes).",
            # Not "delete it": with one image less it is other data, on which the run's checkpoints do not continue.
            "Write this image again, or put another of its class in its place, and run the same command again.",
        ) from error


def _rgb(picture: Image.Image) -> Image.Image:
    if picture.mode.startswith("I"):
        # 16-bit grey; Pillow's own conversion cuts off at 255 instead of scaling.
        levels = np.asarray(picture, dtype=np.float64) / 257
        return Image.fromarray(levels.round().clip(0, 255).astype(np.uint8)).convert("RGB")
    if picture.has_transparency_data:
        ground = Image.new("RGBA", picture.size, BACKGROUND)
        return Image.alpha_composite(ground, picture.convert("RGBA")).convert("RGB")
    return picture if picture.mode == "RGB" else picture.convert("RGB")


def unreadable(name: str, error: OSError) -> WorkloadError:
    """The failure that an error of the file system means for whoever asked for `name`."""
    if isinstance(error, FileNotFoundError):
        return DataIntegrityError(f"{name} is gone.", "Leave the data alone while it is read; run the command again.")
    return PlaceError(f"{name} cannot be read: {error.strerror or error}.", "Check the mount and its permissions.")
