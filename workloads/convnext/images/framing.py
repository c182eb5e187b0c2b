"""The part of a picture that the model sees, chosen before the picture is decoded."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torchvision.transforms import v2

from workloads.convnext.config import TrainConfig

Box = tuple[int, int, int, int]
"""A part of a picture in pixels: first row, first column, height, width."""


class Framing:
    """The part of each picture that the model sees; only the size of a picture is needed to know it."""

    def __init__(self, config: TrainConfig, train: bool) -> None:
        """Prepare the choice.

        Args:
            config: augmentation and image size.
            train: whether the images are to be learnt from.
        """
        self._crop = config.augmentation == "crop-flip"
        self._random = v2.RandomResizedCrop(config.image_size) if self._crop and train and not config.resident else None

    def __call__(self, height: int, width: int, seed: int) -> Box:
        """The part of one picture.

        Args:
            height: of the picture, in pixels.
            width: likewise.
            seed: of the choice, where there is one: `Draw.FRAME` of the image and the epoch.
        """
        if self._random:
            with _seeded(seed):
                drawn = self._random.make_params([torch.empty(3, height, width, device="meta")])
            return drawn["top"], drawn["left"], drawn["height"], drawn["width"]
        if self._crop:
            # The middle 7/8 of the shorter side, as the ImageNet protocol's 224 of 256.
            side = max(1, min(height, width) * 7 // 8)
            return (height - side) // 2, (width - side) // 2, side, side
        return 0, 0, height, width


@contextmanager
def _seeded(seed: int) -> Iterator[None]:
    # What torchvision draws comes from torch's global generator, whose state is the caller's. `torch.random.fork_rng`
    # does the same in 70 us, a twelfth of what decoding a picture takes.
    generator = torch.default_generator
    before = generator.get_state()
    generator.manual_seed(seed)
    try:
        yield
    finally:
        generator.set_state(before)
