"""The benchmarks of a training step run, and count what they say they count."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from benchmarks import gpu, step_time
from benchmarks.prepared import CLASSES, Prepared
from tests.training import CPU
from workloads.convnext import config as configuration
from workloads.convnext.model import build

pytestmark = pytest.mark.thorough


@pytest.fixture(autouse=True)
def one_thread() -> None:
    """As the benchmark has it."""
    torch.set_num_threads(1)


@pytest.mark.parametrize("recipe", [False, True])
def test_three_loops_take_turns_on_the_same_model_and_images(recipe: bool) -> None:
    config = step_time.configured("nano", 32, 8, recipe)
    assert bool(config.mixup) == recipe
    work = step_time.Work(config, recipe, Prepared(config, CPU), CPU)
    ours = build("nano", CLASSES, seed=0)
    for built in (step_time.timm_model(work), step_time.torchvision_model(work)):
        assert sorted(p.numel() for p in built.parameters()) == sorted(p.numel() for p in ours.parameters())
    rounds = [step_time.measured(work, steps=2) for _ in range(2)]
    assert [set(one) for one in rounds] == [{"oasis", "timm", "torchvision"}] * 2
    assert all(seconds > 0 for one in rounds for seconds in one.values())


def test_ratios_are_of_one_round_and_their_median_is_kept() -> None:
    rounds = [{"oasis": 1.0, "timm": 2.0}, {"oasis": 2.0, "timm": 2.0}, {"oasis": 1.0, "timm": 1.5}]
    figures = step_time.compared(rounds)
    assert figures["ratio to ours"]["timm"] == {"median": 1.5, "least": 1.0, "most": 2.0}
    assert figures["seconds per step"]["oasis"] == {"median": 1.0, "least": 1.0, "most": 2.0}


def test_a_setting_of_the_gpu_benchmark_is_measured_and_split_by_kind() -> None:
    config = next(iter(gpu.settings(smoke=True, batch_sizes=[]).values()))
    figures = gpu.measured(config, windows=2, steps=2)
    assert figures["images per second"]["median"] > 0
    assert 0 < figures["MFU of that"] < 1
    kinds = {"matrix products", "depthwise", "layer norm", "elementwise", "optimiser"}
    assert set(figures["milliseconds per step by kind"]) == kinds
    assert set(gpu.settings(smoke=False, batch_sizes=[64])) == {f"base, {mode}, 64" for mode in gpu.MODES}


@pytest.mark.parametrize(
    ("operation", "shapes", "kernel", "kind"),
    [
        ("aten::convolution_backward", [[8, 24, 8, 8], [8, 24, 8, 8], [24, 1, 7, 7]], "cudnn::dgrad2d", "depthwise"),
        ("aten::cudnn_convolution", [[8, 3, 32, 32], [24, 3, 4, 4]], "sm90_xmma_fprop", "matrix products"),
        ("aten::addmm", [[96], [512, 24], [24, 96]], "nvjet_tst_128x256", "matrix products"),
        ("CompiledFunction", [], "triton_per_fused_native_layer_norm_3", "layer norm"),
        ("CompiledFunction", [], "triton_poi_fused_gelu_5", "elementwise"),
        ("aten::native_layer_norm_backward", [], "GammaBetaBackward", "layer norm"),
        ("aten::_fused_adamw_", [], "multi_tensor_apply_kernel", "optimiser"),
        ("aten::_foreach_lerp_", [], "multi_tensor_apply_kernel", "optimiser"),
        ("aten::gelu_backward", [[8, 8, 8, 96]], "vectorized_elementwise_kernel", "elementwise"),
    ],
)
def test_a_kernel_is_counted_to_what_launched_it(
    operation: str, shapes: list[list[int]], kernel: str, kind: str
) -> None:
    assert gpu.kind(operation, shapes, kernel) == kind


def test_what_does_not_fit_is_a_result_too(monkeypatch: pytest.MonkeyPatch) -> None:
    def exhausted(*_: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    config = dataclasses.replace(configuration.digits_laptop(), image_size=32, batch_size=4)
    monkeypatch.setattr("workloads.convnext.execution.autocast", exhausted)
    assert "do not fit the memory" in gpu.measured(config, windows=1, steps=1)["does not fit"]
