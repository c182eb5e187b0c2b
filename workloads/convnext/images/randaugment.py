"""RandAugment (arXiv 1909.13719) of a batch, on the device that has it: torchvision's operations and magnitudes.

torchvision's own class draws once for a whole batch. Here each image has its own draws, and the images that drew the
same operation go through it together.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional

STRONGEST = 30
"""Largest magnitude: that of torchvision's RandAugment with its 31 bins (torchvision 0.29, v2/_auto_augment.py)."""

Operation = Callable[[Tensor], Tensor]


def randaugment(images: Tensor, draws: Sequence[Tensor], magnitude: int, fill: Sequence[int]) -> Tensor:
    """Send each image through as many operations as there are draws for it.

    Args:
        images: uint8 [N, 3, H, W].
        draws: for each operation in turn, a random integer for each image, int64 [N], on the host: the device is not
            asked which image drew what, as the host would have to wait for its answer.
        magnitude: of all operations, 0 to `STRONGEST`.
        fill: red, green and blue of the corners that a moved image uncovers.

    Returns:
        uint8 [N, 3, H, W].
    """
    operations = _operations(magnitude, images.shape[-2], images.shape[-1], list(fill))
    images = images.contiguous()  # by planes torchvision's operations take three quarters of the time
    for draw in draws:
        drawn = draw % len(operations)
        place = torch.argsort(drawn, stable=True)
        counts = torch.bincount(drawn, minlength=len(operations)).tolist()
        parts = images[place.to(images.device, non_blocking=True)].split(counts)
        altered = [operation(part) for operation, part in zip(operations, parts, strict=True) if len(part)]
        images = torch.cat(altered)[torch.argsort(place).to(images.device, non_blocking=True)]
    return images


def _operations(magnitude: int, height: int, width: int, fill: list[int]) -> list[Operation]:
    """The operations with their sign, equally likely: each of torchvision's fourteen twice, of which nine have two."""

    def level(most: float) -> float:
        return float(torch.linspace(0.0, most, STRONGEST + 1)[magnitude])  # to the bit as torchvision has it

    how = {"interpolation": v2.InterpolationMode.BILINEAR, "fill": fill}

    def moved(across: float = 0, down: float = 0) -> Operation:
        return partial(functional.affine, angle=0, translate=[int(across), int(down)], scale=1, shear=[0, 0], **how)

    def sheared(across: float = 0, down: float = 0) -> Operation:
        angles = [math.degrees(math.atan(one)) for one in (across, down)]
        return partial(functional.affine, angle=0, translate=[0, 0], scale=1, shear=angles, center=[0, 0], **how)

    found: list[Operation] = []
    for sign in (1, -1):
        lean, factor = sign * level(0.3), 1 + sign * level(0.9)
        found += [
            lambda images: images,
            sheared(across=lean),
            sheared(down=lean),
            moved(across=sign * level(150 / 331 * width)),
            moved(down=sign * level(150 / 331 * height)),
            partial(functional.rotate, angle=sign * level(30), **how),
            partial(functional.adjust_brightness, brightness_factor=factor),
            partial(functional.adjust_saturation, saturation_factor=factor),
            partial(functional.adjust_contrast, contrast_factor=factor),
            partial(functional.adjust_sharpness, sharpness_factor=factor),
            partial(functional.posterize, bits=round(8 - magnitude / (STRONGEST / 4))),
            partial(functional.solarize, threshold=255 * float(torch.linspace(1.0, 0.0, STRONGEST + 1)[magnitude])),
            functional.autocontrast,
            functional.equalize,
        ]
    return found
