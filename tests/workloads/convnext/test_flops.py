"""Operations per image against what is published and what torch counts, and the share of a GPU's peak."""

from __future__ import annotations

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from workloads.convnext.config import Model
from workloads.convnext.learning import flops
from workloads.convnext.learning.model import build


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("variant", "forward", "depthwise", "training"),
    [
        ("tiny", 4.46e9, 105e6, 26.7e9),
        ("small", 8.68e9, 172e6, 52.1e9),
        ("base", 15.35e9, 229e6, 92.1e9),
        ("large", 34.36e9, 343e6, 206.1e9),
    ],
)
def test_the_counts_are_those_of_the_paper_and_of_torch(
    variant: Model, forward: float, depthwise: float, training: float
) -> None:
    counted = flops.macs(variant, 224, 1000)
    assert counted.forward == pytest.approx(forward, rel=2e-3)
    assert counted.depthwise == pytest.approx(depthwise, rel=5e-3)
    assert flops.training_flops(variant, 224, 1000) == pytest.approx(training, rel=2e-3)
    with torch.device("meta"), FlopCounterMode(display=False) as counter:
        build(variant, classes=1000, seed=0)(torch.empty(1, 3, 224, 224))
    assert 2 * counted.forward == counter.get_total_flops()


@pytest.mark.parametrize("size", [32, 70, 224])
def test_odd_sizes_are_rounded_down_as_the_model_does(size: int) -> None:
    with torch.device("meta"), FlopCounterMode(display=False) as counter:
        build("nano", classes=10, seed=0)(torch.empty(1, 3, size, size))
    assert 2 * flops.macs("nano", size, 10).forward == counter.get_total_flops()


def test_utilisation_is_the_share_of_a_stated_peak() -> None:
    counted = flops.training_flops("base", 224, 1000)
    published = flops.PEAKS["NVIDIA H200"].tflops["bf16"]
    assert flops.utilisation(3000, counted, published) == pytest.approx(0.279, abs=1e-3)
    assert flops.utilisation(232, counted, flops.PEAKS["NVIDIA H200"].tflops["fp32"]) == pytest.approx(0.319, abs=1e-3)
    assert flops.peak(torch.device("cpu"), "bf16") is None
