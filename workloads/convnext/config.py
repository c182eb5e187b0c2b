"""The configuration of a training run: one flat frozen dataclass, and recipes, functions that return a complete one.

Facts about the place (nodes, GPUs, buckets) are not here: they come from the environment.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, Literal, get_args

from workloads.errors import UsageError

Model = Literal["nano", "tiny", "small", "base", "large"]
Augmentation = Literal["none", "shift", "crop-flip"]
Precision = Literal["fp32", "tf32", "bf16"]
Kernels = Literal["measured", "torch"]

MODELS: tuple[str, ...] = get_args(Model)
AUGMENTATIONS: tuple[str, ...] = get_args(Augmentation)
PRECISIONS: tuple[str, ...] = get_args(Precision)
KERNELS: tuple[str, ...] = get_args(Kernels)

STAGES: dict[str, tuple[tuple[int, ...], tuple[int, ...]]] = {
    "nano": ((24, 48, 96, 192), (1, 1, 2, 1)),
    "tiny": ((96, 192, 384, 768), (3, 3, 9, 3)),
    "small": ((96, 192, 384, 768), (3, 3, 27, 3)),
    "base": ((128, 256, 512, 1024), (3, 3, 27, 3)),
    "large": ((192, 384, 768, 1536), (3, 3, 27, 3)),
}
"""Channels and blocks of the four stages. Tiny to large: arXiv 2201.03545, section 3; nano is ours, for laptops."""


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """Every value that decides what a run computes. Two runs with equal configurations and data are equal."""

    recipe: str
    """Name of the recipe it was derived from; for people and for the run's summary."""
    model: Model
    """ConvNeXt variant. Part of the run's identity: a checkpoint of another variant is refused."""
    data: str
    """`synthetic`, a name below the data mount, an absolute path, or a gs:// address; image folders or tar shards."""
    image_size: int
    """Pixels per side of the square the model sees; at least 32, since the model reduces 32-fold."""
    augmentation: Augmentation
    """`shift` moves by up to a sixteenth (digits must not be mirrored), `crop-flip` is the ImageNet recipe's."""
    randaugment: int
    """Magnitude of RandAugment (arXiv 1909.13719), 0 to 30 as torchvision counts; 0 switches it off."""
    mixup: float
    """Both parameters of the Beta distribution of mixup (arXiv 1710.09412); 0 switches it off."""
    cutmix: float
    """Both parameters of CutMix's Beta distribution (arXiv 1905.04899); 0 switches it off. With mixup on too, each pair
    of images gets one or the other."""
    random_erasing: float
    """Probability that an image loses a rectangle (arXiv 1708.04896); 0 switches it off."""
    resident: bool
    """Decode once and keep all images on the device as bytes; for data that fits its memory. Otherwise stream."""
    loader_workers: int
    """Decoding processes per worker when streaming; 0 decodes in the training process."""
    epochs: int
    """Passes over the training images. A finished run goes on when this is raised."""
    batch_size: int
    """Images per optimiser step over all workers together, so that a changed number of workers changes no result."""
    accumulate: int
    """Parts in which a worker computes its share of a step, one after the other: for what memory cannot hold whole."""
    learning_rate: float
    """Peak of the schedule, for this `batch_size`."""
    warmup_epochs: float
    """Length of the linear rise; too short diverges at large batches."""
    weight_decay: float
    """AdamW's, on matrices and kernels alone: not on biases, norms and layer scales."""
    label_smoothing: float
    """Share of each label spread over the other classes, 0 to below 1."""
    drop_path: float
    """Stochastic depth of the last block; earlier blocks get proportionally less."""
    clip_norm: float
    """Largest gradient norm; 0 switches clipping off."""
    ema_decay: float
    """Decay of the averaged weights that are then the ones evaluated; 0 switches averaging off."""
    precision: Precision
    """Of matrix products on a GPU; `bf16` is autocast, weights stay fp32. A CPU computes in fp32 whatever this says."""
    compile: bool
    """Let torch.compile fuse the model's blocks; takes a minute at the start. Without a compiler the run is eager."""
    autotune: bool = False
    """When compiling, time Inductor's own matrix products, which what follows can be fused into, beside the vendor's
    (torch's `max-autotune-no-cudagraphs`); takes minutes at the start. Each rank and each start chooses for itself."""
    kernels: Kernels = "measured"
    """Of the depthwise convolutions on a GPU: `measured` compares torch's with ours at the run's first start and keeps
    to the faster one, with `deterministic` to ours; `torch` uses nothing of ours."""
    deterministic: bool
    """Only algorithms that give the same bits every time; slower on a GPU. A CPU gives them either way."""
    checkpoint_seconds: float
    """Longest time between checkpoints, and so the most work a kill can cost; 0 takes Young's optimum."""
    failure_hours: float
    """Expected time between failures of the whole job, from which Young's optimum is computed."""
    keep_checkpoints: int
    """Checkpoints kept; at least 2, so that a damaged newest one leaves another to fall back on."""
    log_steps: int
    """Optimiser steps between records; each reads the loss back from the device, which waits for it."""
    seed: int
    """Decides initial weights, order of images, augmentation and stochastic depth."""

    def __post_init__(self) -> None:
        """Refuse values that could only fail later.

        Raises:
            UsageError: naming every wrong field at once.
        """
        wrong = [f"{name} is {getattr(self, name)!r} but must be {allowed}" for name, allowed in self._violations()]
        if wrong:
            raise UsageError(f"{'; '.join(wrong)}.", "Change the flag, or the recipe in workloads/convnext/config.py.")

    def _violations(self) -> list[tuple[str, str]]:
        rules = [
            ("model", self.model in MODELS, f"one of {', '.join(MODELS)}"),
            ("augmentation", self.augmentation in AUGMENTATIONS, f"one of {', '.join(AUGMENTATIONS)}"),
            ("precision", self.precision in PRECISIONS, f"one of {', '.join(PRECISIONS)}"),
            ("kernels", self.kernels in KERNELS, f"one of {', '.join(KERNELS)}"),
            ("autotune", self.compile or not self.autotune, "false without compile"),
            ("autotune", not (self.autotune and self.deterministic), "false with deterministic"),
            ("randaugment", 0 <= self.randaugment <= 30, "0 to 30"),
            ("mixup", 0 <= self.mixup <= 10, "0 to 10"),
            ("cutmix", 0 <= self.cutmix <= 10, "0 to 10"),
            ("random_erasing", 0 <= self.random_erasing <= 1, "0 to 1"),
            ("accumulate", 1 <= self.accumulate <= max(self.batch_size, 1), "at least 1 and at most batch_size"),
            ("data", bool(self.data), "`synthetic`, a path or a gs:// address"),
            ("image_size", self.image_size >= 32, "at least 32"),
            ("loader_workers", self.loader_workers >= 0, "at least 0"),
            ("epochs", self.epochs >= 1, "at least 1"),
            ("batch_size", self.batch_size >= 1, "at least 1"),
            ("learning_rate", 0 < self.learning_rate < 10, "between 0 and 10"),
            ("warmup_epochs", self.warmup_epochs >= 0, "at least 0"),
            ("weight_decay", 0 <= self.weight_decay < 1, "at least 0 and below 1"),
            ("label_smoothing", 0 <= self.label_smoothing < 1, "at least 0 and below 1"),
            ("drop_path", 0 <= self.drop_path < 1, "at least 0 and below 1"),
            ("clip_norm", self.clip_norm >= 0, "at least 0"),
            ("ema_decay", 0 <= self.ema_decay < 1, "at least 0 and below 1"),
            ("checkpoint_seconds", self.checkpoint_seconds >= 0, "at least 0"),
            ("failure_hours", self.failure_hours > 0, "above 0"),
            ("keep_checkpoints", self.keep_checkpoints >= 2, "at least 2"),
            ("log_steps", self.log_steps >= 1, "at least 1"),
            ("seed", 0 <= self.seed < 2**31, "at least 0 and below 2147483648"),
        ]
        return [(name, allowed) for name, holds, allowed in rules if not holds]

    @property
    def identity(self) -> dict[str, Any]:
        """Everything that a checkpoint and a run that loads it must share, as far as the data does not decide it."""
        return {"model": self.model, "image_size": self.image_size, "seed": self.seed, "ema": self.ema_decay > 0}

    def to_dict(self) -> dict[str, Any]:
        """Plain data for manifests, journals and Ray; `TrainConfig(**data)` reads it back."""
        return dataclasses.asdict(self)


def digits_laptop() -> TrainConfig:
    """Nano on scikit-learn's handwritten digits: two CPU workers reach 98 % in seconds."""
    return TrainConfig(
        recipe="digits_laptop",
        model="nano",
        data="digits",
        image_size=32,
        augmentation="shift",
        randaugment=0,
        mixup=0.2,
        cutmix=0.0,
        random_erasing=0.0,
        resident=True,
        loader_workers=0,
        epochs=16,
        batch_size=64,
        accumulate=1,
        learning_rate=4e-3,
        warmup_epochs=2,
        weight_decay=0.05,
        label_smoothing=0.1,
        drop_path=0.0,
        clip_norm=1.0,
        ema_decay=0.98,
        precision="fp32",
        compile=False,
        deterministic=False,
        checkpoint_seconds=5,
        failure_hours=24,
        keep_checkpoints=3,
        log_steps=10,
        seed=0,
    )


def imagenet_a3_ultra() -> TrainConfig:
    """Base on ImageNet with the ConvNeXt paper's recipe (arXiv 2201.03545, table 5): 4e-3 at 4096 images a step."""
    return TrainConfig(
        recipe="imagenet_a3_ultra",
        model="base",
        data="imagenet",
        image_size=224,
        augmentation="crop-flip",
        randaugment=27,  # the paper's m9 counts to timm's 10
        mixup=0.8,
        cutmix=1.0,
        random_erasing=0.25,
        resident=False,
        loader_workers=24,
        epochs=300,
        batch_size=4096,
        accumulate=1,
        learning_rate=4e-3,
        warmup_epochs=20,
        weight_decay=0.05,
        label_smoothing=0.1,
        drop_path=0.5,
        clip_norm=0.0,
        ema_decay=0.9999,
        precision="bf16",
        compile=True,
        deterministic=False,
        checkpoint_seconds=0,
        failure_hours=24,
        keep_checkpoints=3,
        log_steps=50,
        seed=0,
    )


def synthetic_a3_ultra() -> TrainConfig:
    """The same on made-up images that live on the device: what the GPUs do when nothing feeds them slowly.

    256 images per GPU of one node; no checkpoint in less than ten minutes, so that nothing else is measured.
    """
    return dataclasses.replace(
        imagenet_a3_ultra(),
        recipe="synthetic_a3_ultra",
        data="synthetic",
        augmentation="none",
        randaugment=0,
        mixup=0.0,
        cutmix=0.0,
        random_erasing=0.0,
        resident=True,
        loader_workers=0,
        epochs=100,
        batch_size=2048,
        learning_rate=2e-3,
        drop_path=0.1,
        checkpoint_seconds=600,
        log_steps=20,
    )


RECIPES: dict[str, Callable[[], TrainConfig]] = {
    recipe.__name__: recipe for recipe in (digits_laptop, imagenet_a3_ultra, synthetic_a3_ultra)
}


def known_recipe(name: str) -> str:
    """The name, which is one of `RECIPES`.

    Raises:
        UsageError: it is not.
    """
    if name not in RECIPES:
        nearest = get_close_matches(name, RECIPES, n=1, cutoff=0.3)
        hint = f"Did you mean {nearest[0]}?" if nearest else "Name one of these with --recipe."
        raise UsageError(f"there is no recipe {name!r}; there are {', '.join(RECIPES)}.", hint)
    return name


def from_recipe(name: str, **changes: object) -> TrainConfig:
    """The recipe's configuration with some fields changed; a change that is None leaves the recipe's value.

    Raises:
        UsageError: unknown recipe, or a value out of range.
    """
    given: dict[str, Any] = {field: value for field, value in changes.items() if value is not None}
    return dataclasses.replace(RECIPES[known_recipe(name)](), **given)
