"""torchvision's ConvNeXt in five sizes, not pretrained, in channels-last layout; stochastic depth; averaged weights.

Stochastic depth is drawn per image, like everything random, so that the number of ranks changes nothing. The residual
that a block adds to is kept in the precision of its products: in bf16, half the bytes that autocast would use.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils import skip_init
from torch.optim.swa_utils import get_ema_multi_avg_fn
from torchvision.models.convnext import CNBlock, CNBlockConfig, ConvNeXt, LayerNorm2d

from workloads.convnext.config import STAGES, Model
from workloads.convnext.images.sampling import chance


class Block(CNBlock):
    """torchvision's block, with layer scale, stochastic depth and residual in one pass over memory instead of three."""

    keep: Tensor | None = None
    """Draw of `StochasticDepth` for this block, [N, 1, 1, 1]: 0 for an image that skips it."""

    def forward(self, input: Tensor) -> Tensor:
        scale = self.layer_scale
        if self.keep is not None and self.training:
            scale = scale * self.keep
        branch = self.block(input)
        return torch.addcmul(input, branch, scale).to(branch.dtype)


class Depthwise(nn.Conv2d):
    """A block's convolution, by torch or, if `choice` says so, by our kernel."""

    ours = False

    def forward(self, input: Tensor) -> Tensor:
        if not self.ours:
            return super().forward(input)
        kind = input.device.type
        dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else input.dtype
        return torch.ops.oasis.depthwise(input.to(dtype), self.weight, self.bias)


class Patches(nn.Conv2d):
    """The stem and the downsampling between stages: a convolution whose stride equals its kernel size, on a GPU as a
    matrix product."""

    def forward(self, input: Tensor) -> Tensor:
        return self.multiplied(input) if input.is_cuda else super().forward(input)

    def multiplied(self, input: Tensor) -> Tensor:
        """The convolution as one product: [N, C, H, W] to [N, D, H / k, W / k], channels last."""
        images, channels, height, width = input.shape
        side = self.kernel_size[0]
        rows, columns = height // side, width // side
        pixels = input.permute(0, 2, 3, 1)[:, : rows * side, : columns * side]
        split = pixels.reshape(images, rows, side, columns, side, channels).transpose(2, 3)
        weight = self.weight.permute(0, 2, 3, 1).flatten(1)
        return functional.linear(split.flatten(3), weight, self.bias).permute(0, 3, 1, 2)


class Norm(LayerNorm2d):
    """The layer norm before and after `Patches`, whose result is in its input's precision.

    Autocast computes it in fp32 and leaves it there: in the stem, that would be what the first block adds to. The
    norm within a block needs no such care, as the product after it rounds its result anyway.
    """

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).to(x.dtype)


class StochasticDepth:
    """Random skipping of blocks (arXiv 1603.09382): the last block most often, the first never."""

    def __init__(self, model: nn.Module, rate: float, seed: int, device: torch.device) -> None:
        """Attach to the model's blocks.

        Args:
            model: as `build` returns it.
            rate: share of the images that skip the last block.
            seed: seed of the run.
            device: the model's device.
        """
        self._blocks = [module for module in model.modules() if isinstance(module, Block)]
        self._seed = seed
        count = len(self._blocks)
        self._numbers = torch.arange(count, device=device).unsqueeze(1)
        self._rates = torch.linspace(0, rate, count, device=device).unsqueeze(1)

    def draw(self, indices: Tensor, epoch: int) -> None:
        """Draw for the images of the next pass, given their `indices`, int64 [N], on the model's device."""
        stream = _DEPTH_STREAM + epoch * len(self._blocks)
        draws = chance(indices, self._seed, 0, self._numbers + stream)
        keep = (draws >= self._rates * 2**31) / (1 - self._rates)
        for block, kept in zip(self._blocks, keep.view(len(self._blocks), -1, 1, 1, 1), strict=True):
            block.keep = kept


_DEPTH_STREAM = 1 << 40
"""Stochastic depth's draws begin here, far from those of `sampling.Draw`, which count up from 0 with the epochs."""


def build(variant: Model, classes: int, seed: int) -> nn.Module:
    """A freshly initialised model, the same for the same seed on every rank.

    It maps float images [N, 3, H, W] to logits [N, classes]. The weights are channels last *before* DDP wraps them:
    otherwise the strides of the depthwise convolutions' gradients differ from DDP's buckets, and DDP warns at each.
    """
    channels, depths = STAGES[variant]
    stages = [
        CNBlockConfig(width, following, depth)
        for width, following, depth in zip(channels, (*channels[1:], None), depths, strict=True)
    ]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = ConvNeXt(stages, num_classes=classes, block=Block, norm_layer=partial(Norm, eps=1e-6))
    for parent in list(model.modules()):
        for name, child in parent.named_children():
            if isinstance(child, nn.Conv2d):
                setattr(parent, name, _replaced(child))
    return model.to(memory_format=torch.channels_last)


def _replaced(convolution: nn.Conv2d) -> nn.Module:
    # torchvision has no option for another class; the parameters stay, and with them their names and values.
    kind = Depthwise if convolution.groups > 1 else Patches
    extents = convolution.in_channels, convolution.out_channels, convolution.kernel_size
    rest = {name: getattr(convolution, name) for name in ("stride", "padding", "groups")}
    mine = skip_init(kind, *extents, **rest)
    mine.load_state_dict(convolution.state_dict(), assign=True)
    return mine


def depthwise_shapes(variant: Model, image_size: int) -> list[tuple[int, int]]:
    """Channels and pixels per side of the depthwise convolutions of each stage."""
    return [(width, image_size // 4 >> stage) for stage, width in enumerate(STAGES[variant][0])]


def use_ours(model: nn.Module, channels: Collection[int]) -> None:
    """Compute depthwise convolutions with these numbers of channels by our kernel, and the others by torch."""
    for module in model.modules():
        if isinstance(module, Depthwise):
            module.ours = module.in_channels in channels


def parameter_groups(model: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """AdamW groups: weight decay on matrices and kernels, none on biases, norms and layer scales."""
    decayed = [parameter for parameter in model.parameters() if _is_matrix(parameter)]
    others = [parameter for parameter in model.parameters() if not _is_matrix(parameter)]
    return [{"params": decayed, "weight_decay": weight_decay}, {"params": others, "weight_decay": 0.0}]


def _is_matrix(parameter: nn.Parameter) -> bool:
    # A layer scale is [C, 1, 1]: three dimensions, only one of them larger than 1.
    return sum(extent > 1 for extent in parameter.shape) > 1


class AveragedWeights:
    """Exponential moving average of the weights, used in their place for evaluation."""

    def __init__(self, model: nn.Module, decay: float) -> None:
        self._decay = decay
        # They share storage with the parameters, so that an update need not collect them again.
        self._current = [parameter.detach() for parameter in model.parameters()]
        self._weights = [weight.clone() for weight in self._current]
        self._swapped = False

    @torch.no_grad()
    def update(self, step: int) -> None:
        """Move towards the model's weights; faster at first, when the average is still the initial weights."""
        decay = min(self._decay, (1 + step) / (10 + step))
        # One fused launch for all weights rather than one each.
        get_ema_multi_avg_fn(decay)(self._weights, self._current, 1)

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """The model with the averaged weights, within the context."""
        self._swap()
        try:
            yield
        finally:
            self._swap()

    @contextmanager
    def beside(self) -> Iterator[None]:
        """The model with the trained weights, even inside `in_place`, within the context."""
        swapped = self._swapped
        if swapped:
            self._swap()
        try:
            yield
        finally:
            if swapped:
                self._swap()

    @torch.no_grad()
    def _swap(self) -> None:
        self._swapped = not self._swapped
        for average, current in zip(self._weights, self._current, strict=True):
            held = current.clone()
            current.copy_(average)
            average.copy_(held)

    def state(self) -> list[Tensor]:
        return self._weights

    @torch.no_grad()
    def load(self, weights: list[Tensor]) -> None:
        for mine, saved in zip(self._weights, weights, strict=True):
            mine.copy_(saved)
