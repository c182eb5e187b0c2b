"""Augmentation of training images on the device, in batches; `framing` has the part that the loader does.

Every draw depends on (seed, epoch, image) alone. torchvision's own MixUp, CutMix and RandomErasing cannot do that: they
draw once for a whole batch, from a generator whose state depends on what ran before.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from scipy.special import betaincinv
from torch import Tensor

from workloads.convnext.config import TrainConfig
from workloads.convnext.images.randaugment import RandAugment
from workloads.convnext.images.sampling import Draw, chance

MEAN = (123.675, 116.28, 103.53)
DEVIATION = (58.395, 57.12, 57.375)
"""ImageNet's channel statistics on the 0..255 scale, as torchvision's transforms publish them."""

SHIFT = 16
"""`shift` moves an image by up to this part of its side, in either direction."""

ERASED_AREA = (0.02, 1 / 3)
ERASED_RATIO = (0.3, 3.3)
"""Share of the image and height to width of an erased rectangle: arXiv 1708.04896, and torchvision's and timm's."""

OPERATIONS = 2
"""Operations of RandAugment on an image: its N, as torchvision and timm have it by default."""

RANDAUGMENT_STREAM = 1 << 41
"""Its draws begin here, far from those of `Draw` and of stochastic depth, which count up with the epochs."""

QUANTILES = 2**14
"""Values that a mixing share can have: finer than a pixel's 256 levels show."""


class DeviceAugmentation:
    """From bytes to what the model is trained on: moved, mirrored, through RandAugment, normalised, erased, mixed by
    pairs, with soft labels.

    Unlike timm's recipe, each pair has its own share and its own choice between mixup and CutMix, rather than the
    batch one for all, and an erased rectangle has the mean colour rather than noise.
    """

    def __init__(self, config: TrainConfig, classes: int, device: torch.device) -> None:
        """Prepare the tables.

        Args:
            config: which alterations, how strong; the seed.
            classes: number of classes, the length of a target.
            device: where batches are altered; nothing there is waited for.
        """
        self._config = config
        self._classes = classes
        self._device = device
        self._mean = torch.tensor(MEAN, device=device).view(1, 3, 1, 1)
        self._deviation = torch.tensor(DEVIATION, device=device).view(1, 3, 1, 1)
        self._draws = torch.arange(len(Draw), device=device).view(-1, 1)
        fill = [round(level) for level in MEAN]
        magnitude = config.randaugment
        self._randaugment = RandAugment(magnitude, config.image_size, fill, device) if magnitude else None
        self._mixup = beta_quantiles(config.mixup, device)
        self._cutmix = beta_quantiles(config.cutmix, device)
        self._cut_share = config.cutmix and (0.5 if config.mixup else 1.0)

    def normalise(self, images: Tensor) -> Tensor:
        """Move uint8 [N, 3, H, W] to the device; float32 with ImageNet's mean 0 and deviation 1, channels last."""
        # Bytes travel; a `to` that also converts would convert on the host and send four times as much.
        moved = images.to(self._device, non_blocking=True)
        return moved.to(torch.float32, memory_format=torch.channels_last).sub_(self._mean).div_(self._deviation)

    def __call__(self, images: Tensor, labels: Tensor, indices: Tensor, epoch: int) -> tuple[Tensor, Tensor]:
        """Alter one slot's images.

        Args:
            images: uint8 [N, 3, H, W], on any device.
            labels: class of each, int64 [N], on any device.
            indices: the slot's indices, int64 [N], on the host; its pairs are mixed.
            epoch: the epoch they are seen in.

        Returns:
            float32 [N, 3, H, W], channels last, and targets, float32 [N, classes], whose rows sum to 1.
        """
        config = self._config
        images = images.to(self._device, non_blocking=True)
        labels = labels.to(self._device, non_blocking=True)
        on_host, indices = indices, indices.to(self._device, non_blocking=True)
        if config.augmentation != "none":
            images = self._moved(images, indices, epoch)
        if self._randaugment:
            first = RANDAUGMENT_STREAM + epoch * OPERATIONS
            draws = [chance(on_host, config.seed, 0, first + number) for number in range(OPERATIONS)]
            images = self._randaugment(images, draws)
        pixels = self.normalise(images)
        rest = config.label_smoothing / self._classes
        targets = torch.full((len(labels), self._classes), rest, device=self._device)
        targets.scatter_(1, labels[:, None], 1 - config.label_smoothing + rest)
        if config.random_erasing:
            pixels = self._erased(pixels, self._uniform(indices, epoch))
        if config.mixup or config.cutmix:
            pixels, targets = self._mixed(pixels, targets, indices, epoch)
        return pixels, targets

    def _moved(self, images: Tensor, indices: Tensor, epoch: int) -> Tensor:
        config = self._config
        # What is resident was cut once for all: it is moved where another image has a new cut.
        if config.augmentation == "shift" or config.resident:
            reach = images.shape[-1] // SHIFT
            drawn = (chance(indices, config.seed, epoch, draw) for draw in (Draw.DOWN, Draw.ACROSS))
            down, across = (one % (2 * reach + 1) - reach for one in drawn)
            images = _shift(images, down, across)
        if config.augmentation == "shift":
            return images
        mirrored = chance(indices, config.seed, epoch, Draw.MIRROR) % 2 == 1
        return torch.where(mirrored.view(-1, 1, 1, 1), images.flip(-1), images)

    def _uniform(self, indices: Tensor, epoch: int) -> Tensor:
        # [draws, N], below 1; 24 bits are what float32 holds exactly.
        return (chance(indices, self._config.seed, epoch, self._draws) >> 7) / 2**24

    def _erased(self, pixels: Tensor, uniform: Tensor) -> Tensor:
        height, width = pixels.shape[-2:]
        smallest, largest = ERASED_AREA
        flattest, steepest = (math.log(ratio) for ratio in ERASED_RATIO)
        area = (smallest + (largest - smallest) * uniform[Draw.ERASE_AREA]) * (height * width)
        ratio = torch.exp(flattest + (steepest - flattest) * uniform[Draw.ERASE_RATIO])
        rows = torch.sqrt(area * ratio).round().clamp(1, height)
        columns = torch.sqrt(area / ratio).round().clamp(1, width)
        top = torch.floor(uniform[Draw.ERASE_ROW] * (height - rows + 1))
        left = torch.floor(uniform[Draw.ERASE_COLUMN] * (width - columns + 1))
        chosen = uniform[Draw.ERASE] < self._config.random_erasing
        box = _boxes(top, top + rows, left, left + columns, height, width)
        return pixels.masked_fill(box & chosen.view(-1, 1, 1, 1), 0.0)

    def _mixed(self, pixels: Tensor, targets: Tensor, indices: Tensor, epoch: int) -> tuple[Tensor, Tensor]:
        position = torch.arange(len(indices), device=self._device)
        partner = (position ^ 1).clamp(max=len(indices) - 1)
        leaders = indices[position // 2 * 2]  # both of a pair draw as its first image does
        uniform = self._uniform(leaders, epoch)
        cut = uniform[Draw.MIX_KIND] < self._cut_share
        entry = (uniform[Draw.MIX_SHARE] * QUANTILES).long()
        box, box_share = self._cutout(self._cutmix[entry], uniform, pixels.shape[-2], pixels.shape[-1])
        theirs = torch.where(cut, box_share, self._mixup[entry])  # how much of the partner is in the image
        by_pixel = torch.where(cut.view(-1, 1, 1, 1), box.float(), theirs.view(-1, 1, 1, 1))
        return torch.lerp(pixels, pixels[partner], by_pixel), torch.lerp(targets, targets[partner], theirs[:, None])

    def _cutout(self, share: Tensor, uniform: Tensor, height: int, width: int) -> tuple[Tensor, Tensor]:
        # A box of the image's shape round any pixel, cut off at the border, as arXiv 1905.04899 has it; the second
        # result is the share of the image that is left of it.
        reach = torch.sqrt(share) / 2
        down, across = uniform[Draw.CUT_ROW] * height, uniform[Draw.CUT_COLUMN] * width
        top, bottom = ((down + side * reach * height).round().clamp(0, height) for side in (-1, 1))
        left, right = ((across + side * reach * width).round().clamp(0, width) for side in (-1, 1))
        box = _boxes(top, bottom, left, right, height, width)
        return box, (bottom - top) * (right - left) / (height * width)


def _shift(images: Tensor, down: Tensor, across: Tensor) -> Tensor:
    # The border is repeated rather than wrapped round or blackened: a digit's background stays background.
    count, _, height, width = images.shape
    rows = (torch.arange(height, device=images.device) - down[:, None]).clamp(0, height - 1)
    columns = (torch.arange(width, device=images.device) - across[:, None]).clamp(0, width - 1)
    picture = torch.arange(count, device=images.device)[:, None, None]
    return images.permute(0, 2, 3, 1)[picture, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2)


def beta_quantiles(parameter: float, device: torch.device) -> Tensor:
    """Beta(parameter, parameter)'s quantiles in equal steps, float32 [QUANTILES]; zeros, no share, at parameter 0."""
    if not parameter:
        return torch.zeros(QUANTILES, device=device)
    levels = (np.arange(QUANTILES) + 0.5) / QUANTILES
    return torch.as_tensor(betaincinv(parameter, parameter, levels), dtype=torch.float32).to(device)


def _boxes(top: Tensor, bottom: Tensor, left: Tensor, right: Tensor, height: int, width: int) -> Tensor:
    # True inside each rectangle, bool [N, 1, H, W].
    rows, columns = torch.arange(height, device=top.device), torch.arange(width, device=top.device)
    inside_rows = (rows >= top[:, None]) & (rows < bottom[:, None])
    inside_columns = (columns >= left[:, None]) & (columns < right[:, None])
    return (inside_rows[:, :, None] & inside_columns[:, None, :])[:, None]
