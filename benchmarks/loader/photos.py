"""Pictures as hard to decode and to tell apart as photographs: a hundred classes, each of a texture and a shape.

JPEGs of mixed sizes, about as large as ImageNet's, with noise and light. As of grass and of skies, the colours say
something of the class, and not all: of pictures whose colours say nothing, a small network learns nothing for hours.
"""

from __future__ import annotations

import colorsys
import io
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

Levels = NDArray[np.float64]
"""0 to 1 at each pixel, [H, W]."""

LONGEST_SIDE = (500, 0.35)
"""Median in pixels, and deviation of its logarithm: a third is beyond 590, one in forty beyond 1,000."""

TINT_DEVIATION = 45.0
"""Of each channel of a colour from that of its hue, of 255."""


def _noise(rows: Levels, columns: Levels, chance: np.random.Generator, cells: float) -> Levels:
    height, width = (max(2, math.ceil(one.max() / cells)) for one in (rows, columns))
    small = Image.fromarray(chance.integers(0, 256, (height, width), dtype=np.uint8))
    return np.asarray(small.resize((rows.shape[1], rows.shape[0]), Image.Resampling.BICUBIC)) / 255


def _tint(number: int, chance: np.random.Generator) -> Levels:
    """A colour, 0 to 255, near the one of ten hues that has this number."""
    return 255 * np.array(colorsys.hsv_to_rgb(number / 10, 0.6, 0.7)) + chance.normal(0, TINT_DEVIATION, 3)


TEXTURES: tuple[Callable[[Levels, Levels, np.random.Generator], NDArray[Any]], ...] = (
    lambda rows, columns, chance: rows % 1 > 0.5,
    lambda rows, columns, chance: columns % 1 > 0.5,
    lambda rows, columns, chance: (rows % 1 > 0.5) ^ (columns % 1 > 0.5),
    lambda rows, columns, chance: np.hypot(rows % 1 - 0.5, columns % 1 - 0.5) < 0.3,
    lambda rows, columns, chance: np.hypot(rows - rows.mean(), columns - columns.mean()) % 1 > 0.5,
    lambda rows, columns, chance: (rows + np.sin(columns * 2 * np.pi) / 4) % 1 > 0.5,
    lambda rows, columns, chance: (rows % 1 < 0.15) | ((columns + (rows // 1 % 2) / 2) % 1 < 0.1),
    lambda rows, columns, chance: _noise(rows, columns, chance, 0.25),
    lambda rows, columns, chance: _noise(rows, columns, chance, 1.5),
    lambda rows, columns, chance: np.maximum(np.sin(rows * 2 * np.pi), np.sin(columns * 2 * np.pi)) / 2 + 0.5,
)
"""Patterns that a mirror does not change into each other; a period is one unit of rows and columns."""

SHAPES: tuple[tuple[int, float], ...] = (
    *((corners, 1.0) for corners in (3, 4, 6, 40)),
    *((corners, 0.4) for corners in (3, 4, 5, 8)),
    *((corners, 0.75) for corners in (6, 12)),
)
"""Corners, and how far the point between two of them is from the middle, against theirs: polygons, a disc, stars."""


def encoded(texture: int, shape: int, chance: np.random.Generator) -> bytes:
    """One JPEG of a class."""
    longest = float(np.clip(chance.lognormal(math.log(LONGEST_SIDE[0]), LONGEST_SIDE[1]), 120, 2000))
    sides = (round(longest), round(longest * chance.uniform(0.6, 0.9)))
    width, height = sides if chance.random() < 0.7 else sides[::-1]
    period = longest / chance.uniform(8, 16)
    rows, columns = np.mgrid[:height, :width] / period + chance.random(2)[:, None, None]
    pattern = np.asarray(TEXTURES[texture](rows, columns, chance), dtype=np.float64)[..., None]
    ground, inside, figure = _tint(texture, chance), _tint(shape, chance), chance.uniform(30, 225, 3)
    pixels = ground + pattern * (figure - ground)
    mask = Image.new("L", (width, height))
    corners, notch = SHAPES[shape]
    reach, turn = min(width, height) * chance.uniform(0.2, 0.4), chance.uniform(0, 2 * math.pi)
    middle = (width * chance.uniform(0.35, 0.65), height * chance.uniform(0.35, 0.65))
    points = [(turn + math.pi * one / corners, reach * (notch if one % 2 else 1)) for one in range(2 * corners)]
    if notch == 1:
        points = points[::2]
    ImageDraw.Draw(mask).polygon(
        [(middle[0] + far * math.cos(at), middle[1] + far * math.sin(at)) for at, far in points], 255
    )
    shown = np.asarray(mask)[..., None] / 255
    light = np.linspace(chance.uniform(0.7, 1.3), chance.uniform(0.7, 1.3), width)[None, :, None]
    pixels = (pixels * (1 - shown) + inside * shown) * light + chance.normal(
        0, chance.uniform(2, 14), (height, width, 3)
    )
    content = io.BytesIO()
    picture = Image.fromarray(pixels.clip(0, 255).astype(np.uint8))
    picture.save(content, "JPEG", quality=int(chance.integers(75, 96)))
    return content.getvalue()


def pictures(each: int, seed: int) -> Iterator[tuple[str, bytes]]:
    """Class and content of so many pictures of each class, which depend on the seed alone."""
    for number in range(each):
        for texture in range(len(TEXTURES)):
            for shape in range(len(SHAPES)):
                chance = np.random.default_rng((seed, number, texture, shape))
                yield f"texture{texture}-shape{shape}", encoded(texture, shape, chance)


def write(folder: Path, train: int, val: int) -> None:
    """Write an image folder with so many pictures of each class in either split."""
    for seed, (split, each) in enumerate({"train": train, "val": val}.items()):
        for number, (name, content) in enumerate(pictures(each, seed)):
            (folder / split / name).mkdir(parents=True, exist_ok=True)
            (folder / split / name / f"{number}.jpg").write_bytes(content)
