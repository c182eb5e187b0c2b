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
from torch.nn import functional
from torchvision.transforms.v2 import functional as pictures

STRONGEST = 30
"""Largest magnitude: that of torchvision's RandAugment with its 31 bins (torchvision 0.29, v2/_auto_augment.py)."""

Operation = Callable[[Tensor], Tensor]


class RandAugment:
    """Random operations, one after the other, on each image of a batch."""

    def __init__(self, magnitude: int, side: int, fill: Sequence[int], device: torch.device) -> None:
        """Prepare the operations.

        Args:
            magnitude: of all operations, 0 to `STRONGEST`.
            side: height and width of the images, in pixels.
            fill: red, green and blue of the corners that a moved image uncovers.
            device: of the images.
        """
        self._device = device
        self._side = side
        self._fill = torch.tensor(fill, dtype=torch.float32, device=device).view(1, -1, 1, 1)
        self._operations = [operation for sign in (1, -1) for operation in self._signed(magnitude, sign)]

    def __call__(self, images: Tensor, draws: Sequence[Tensor]) -> Tensor:
        """Send each image through as many operations as there are draws for it.

        Args:
            images: uint8 [N, 3, S, S].
            draws: for each operation in turn, a random integer for each image, int64 [N], on the host: the device is
                not asked which image drew what, as the host would have to wait for its answer.

        Returns:
            uint8 [N, 3, S, S].
        """
        images = images.contiguous()  # by planes torchvision's operations take three quarters of the time
        for draw in draws:
            drawn = draw % len(self._operations)
            place = torch.argsort(drawn, stable=True)
            counts = torch.bincount(drawn, minlength=len(self._operations)).tolist()
            parts = images[self._sent(place)].split(counts)
            altered = [apply(part) for apply, part in zip(self._operations, parts, strict=True) if len(part)]
            images = torch.cat(altered)[self._sent(torch.argsort(place))]
        return images

    def _sent(self, indices: Tensor) -> Tensor:
        # From memory that is not pinned the copy would wait for all that the GPU still has to compute.
        return (indices.pin_memory() if self._device.type == "cuda" else indices).to(self._device, non_blocking=True)

    def _signed(self, magnitude: int, sign: int) -> list[Operation]:
        """The fourteen operations, equally likely; the last five, and the first, have no sign."""

        def level(most: float) -> float:
            return sign * float(torch.linspace(0.0, most, STRONGEST + 1)[magnitude])  # to the bit as torchvision has it

        lean, angle, factor = level(0.3), math.radians(level(30)), 1 + level(0.9)
        step = 2 * int(level(150 / 331 * self._side)) / self._side
        return [
            lambda images: images,
            self._moved((1, lean, lean), (0, 1, 0)),
            self._moved((1, 0, 0), (lean, 1, lean)),
            self._moved((1, 0, step), (0, 1, 0)),
            self._moved((1, 0, 0), (0, 1, step)),
            self._moved((math.cos(angle), math.sin(angle), 0), (-math.sin(angle), math.cos(angle), 0)),
            partial(pictures.adjust_brightness, brightness_factor=factor),
            partial(pictures.adjust_saturation, saturation_factor=factor),
            partial(pictures.adjust_contrast, contrast_factor=factor),
            partial(_sharpened, factor=factor),
            partial(pictures.posterize, bits=round(8 - magnitude / (STRONGEST / 4))),
            partial(pictures.solarize, threshold=255 * float(torch.linspace(1.0, 0.0, STRONGEST + 1)[magnitude])),
            pictures.autocontrast,
            pictures.equalize,
        ]

    def _moved(self, *rows: tuple[float, float, float]) -> Operation:
        """An affine operation, given as the matrix from where a pixel goes to where it comes from, both from -1 to 1.

        torchvision's own sends its matrix to the device in each call, which waits for all that the GPU still has to
        compute (torchvision 0.29, v2/functional/_geometry.py: `torch.tensor(..., device=...)`). It also darkens the
        pixels on the edge of what is uncovered, by weighting the image there twice.
        """
        matrix = torch.tensor([rows], dtype=torch.float32, device=self._device)
        origins = functional.affine_grid(matrix, [1, 3, self._side, self._side], align_corners=False)

        def apply(images: Tensor) -> Tensor:
            # What lies outside is sampled as 0, and so becomes the fill.
            pixels = functional.grid_sample(
                images - self._fill, origins.expand(len(images), -1, -1, -1), padding_mode="zeros", align_corners=False
            )
            return (pixels + self._fill).round().to(torch.uint8)

        return apply


def _sharpened(images: Tensor, factor: float) -> Tensor:
    """torchvision's `adjust_sharpness`, which sends its kernel to the device in each call."""
    pixels = images.float()
    middle = pixels[..., 1:-1, 1:-1]
    blurred = (functional.avg_pool2d(pixels, 3, stride=1) * 9 + middle * 4).div_(13).round_()
    middle.lerp_(blurred, 1 - factor)
    return pixels.clamp_(0, 255).to(torch.uint8)
