"""torchvision's ConvNeXt in five sizes, not pretrained and laid out channels last; and a running average of weights."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import get_ema_multi_avg_fn
from torchvision.models.convnext import CNBlockConfig, ConvNeXt

from workloads.convnext.config import Model

STAGES: dict[Model, tuple[tuple[int, ...], tuple[int, ...]]] = {
    "nano": ((24, 48, 96, 192), (1, 1, 2, 1)),
    "tiny": ((96, 192, 384, 768), (3, 3, 9, 3)),
    "small": ((96, 192, 384, 768), (3, 3, 27, 3)),
    "base": ((128, 256, 512, 1024), (3, 3, 27, 3)),
    "large": ((192, 384, 768, 1536), (3, 3, 27, 3)),
}
"""Channels and blocks of the four stages. Tiny to large: arXiv 2201.03545, section 3; nano is ours, for laptops."""


def build(variant: Model, classes: int, drop_path: float, seed: int) -> nn.Module:
    """A freshly initialised model, the same for the same seed on every rank.

    It maps float images [N, 3, H, W] to logits [N, classes]. The weights are channels last *before* DDP wraps them:
    otherwise the depthwise convolutions' gradients have other strides than DDP's buckets and DDP warns at each of them.
    """
    channels, depths = STAGES[variant]
    blocks = [
        CNBlockConfig(width, following, depth)
        for width, following, depth in zip(channels, (*channels[1:], None), depths, strict=True)
    ]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = ConvNeXt(blocks, stochastic_depth_prob=drop_path, num_classes=classes)
    return model.to(memory_format=torch.channels_last)


def parameter_groups(model: nn.Module, weight_decay: float) -> list[dict[str, object]]:
    """AdamW groups: weight decay on matrices and kernels, none on biases, norms and layer scales."""
    decayed = [parameter for parameter in model.parameters() if _is_matrix(parameter)]
    others = [parameter for parameter in model.parameters() if not _is_matrix(parameter)]
    return [{"params": decayed, "weight_decay": weight_decay}, {"params": others, "weight_decay": 0.0}]


def _is_matrix(parameter: nn.Parameter) -> bool:
    # A layer scale is [C, 1, 1]: three dimensions, one of them real.
    return sum(extent > 1 for extent in parameter.shape) > 1


class AveragedWeights:
    """Exponential moving average of the weights; evaluated in their place."""

    def __init__(self, model: nn.Module, decay: float) -> None:
        self._decay = decay
        self._weights = [parameter.detach().clone() for parameter in model.parameters()]
        self._model = model

    @torch.no_grad()
    def update(self, step: int) -> None:
        """Move towards the model's weights; faster at first, when the average is still the initial weights."""
        decay = min(self._decay, (1 + step) / (10 + step))
        current = [parameter.detach() for parameter in self._model.parameters()]
        get_ema_multi_avg_fn(decay)(self._weights, current, 1)

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """The model with the averaged weights, for as long as the context lasts."""
        self._swap()
        try:
            yield
        finally:
            self._swap()

    @torch.no_grad()
    def _swap(self) -> None:
        for average, parameter in zip(self._weights, self._model.parameters(), strict=True):
            held = parameter.detach().clone()
            parameter.copy_(average)
            average.copy_(held)

    def state(self) -> list[Tensor]:
        return self._weights

    @torch.no_grad()
    def load(self, weights: list[Tensor]) -> None:
        for mine, saved in zip(self._weights, weights, strict=True):
            mine.copy_(saved)
