"""One stored picture: where a split keeps it, and from its bytes to a square of RGB whatever mode it was written in.

An error in a picture is reported with its name, in a process that may be the loader's.
"""

from __future__ import annotations

import io
import struct
from collections.abc import Callable
from typing import Protocol

import numpy as np
import simplejpeg
import torch
from numpy.typing import NDArray
from PIL import ExifTags, Image, ImageOps, UnidentifiedImageError
from torch import Tensor
from torchvision.transforms.v2 import functional

from workloads.convnext.images.framing import Box
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

Pixels = NDArray[np.uint8]
"""RGB, [H, W, 3]."""

REDUCTIONS = (8, 4, 2)
"""Parts of its size at which libjpeg-turbo decodes a JPEG in less time than whole: for 1/2 and 1/4 it has vector code
(jsimd.h, jsimd_idct_4x4 and jsimd_idct_2x2), at 1/8 each block is one pixel, its mean."""

UPRIGHT: dict[int, Callable[[Pixels], Pixels]] = {
    2: lambda stored: stored[:, ::-1],
    3: lambda stored: stored[::-1, ::-1],
    4: lambda stored: stored[::-1],
    5: lambda stored: stored.transpose(1, 0, 2),
    6: lambda stored: stored[::-1].transpose(1, 0, 2),
    7: lambda stored: stored[::-1, ::-1].transpose(1, 0, 2),
    8: lambda stored: stored[:, ::-1].transpose(1, 0, 2),
}
"""From a picture as its file holds it to what a viewer shows, by its EXIF orientation, the tag 274 (CIPA DC-008,
"Orientation"); from 5 on height and width change places."""

EXIF_WITHIN = 1 << 16
"""First bytes of a JPEG in which its EXIF data begin: they follow JFIF's segment, if there is one (CIPA DC-008)."""

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


def square(store: PictureStore, index: int, frame: Callable[[int, int], Box], side: int) -> Tensor:
    """Read a part of one JPEG or PNG, scaled to a square.

    Args:
        store: where the picture is.
        index: its number there.
        frame: gives the part, of a picture with this height and width.
        side: of the square, in pixels.

    Returns:
        uint8 [side, side, 3].

    Raises:
        DataIntegrityError: it is neither, or ends too early.
        PlaceError: it cannot be read.
    """
    content = store.read(index)
    try:
        pixels, (top, left, height, width) = _jpeg(content, frame, side)
    except DAMAGE:
        # No JPEG, one of a kind that simplejpeg does not decode, or a damaged one: Pillow's answer counts, and its
        # pixels are the same, as both decode by libjpeg-turbo.
        pixels = np.array(_decoded(content, store, index))
        top, left, height, width = frame(*pixels.shape[:2])
    part = torch.from_numpy(np.ascontiguousarray(pixels[top : top + height, left : left + width]))
    # torch resizes bytes in half of Pillow's time.
    return functional.resize(part.permute(2, 0, 1), [side, side], antialias=True).permute(1, 2, 0)


def _jpeg(content: bytes, frame: Callable[[int, int], Box], side: int) -> tuple[Pixels, Box]:
    """A JPEG at the smallest scale at which the part still has the square's pixels, and where the part is in that;
    raises ValueError if it is none, or not an ordinary one."""
    *size, colours, _ = simplejpeg.decode_jpeg_header(content)
    height, width = map(int, size)
    if colours not in ("YCbCr", "Gray") or height * width > 2 * (Image.MAX_IMAGE_PIXELS or 0):
        raise ValueError(f"left to Pillow: {colours}, {width} x {height} pixels")
    orientation = _orientation(content)
    box = frame(width, height) if orientation >= 5 else frame(height, width)
    scale = next((one for one in REDUCTIONS if min(box[2:]) >= one * side), 1)
    least_height, least_width = (-(-edge // scale) for edge in (height, width))
    pixels = simplejpeg.decode_jpeg(content, "RGB", min_height=least_height, min_width=least_width)
    if orientation in UPRIGHT:
        pixels = UPRIGHT[orientation](pixels)
    top, left, bottom, right = (round(edge / scale) for edge in (*box[:2], box[0] + box[2], box[1] + box[3]))
    return pixels, (top, left, bottom - top, right - left)


def _orientation(content: bytes) -> int:
    # Most have none: to look for the mark takes a few us, to have Pillow open the file a tenth of decoding it.
    if b"Exif\0\0" not in content[:EXIF_WITHIN]:
        return 1
    with Image.open(io.BytesIO(content), formats=("JPEG",)) as picture:
        found = picture.getexif().get(ExifTags.Base.Orientation)
    return found if found in UPRIGHT else 1


def _decoded(content: bytes, store: PictureStore, index: int) -> Image.Image:
    try:
        picture = Image.open(io.BytesIO(content), formats=("JPEG", "PNG"))
        picture.load()
        ImageOps.exif_transpose(picture, in_place=True)
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
