"""Our depthwise convolution against torch's in fp64, on Triton's interpreter, and which of the two a run uses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.support.processes import python
from tests.support.training import CPU, Few, Recorder, small
from workloads.checkpoints.store import CheckpointStore
from workloads.convnext.kernels import choice, depthwise
from workloads.convnext.kernels.choice import TORCH, TRITON, Measured
from workloads.convnext.learning import execution
from workloads.convnext.learning import model as architecture
from workloads.convnext.learning.loop import Training
from workloads.convnext.run import worker
from workloads.errors import UsageError, WorkloadFailedError
from workloads.storage.folders import locate


@pytest.mark.thorough
@pytest.mark.parametrize(
    "shapes",
    [
        [(1, 16, 4, 3), (1, 24, 7, 7)],
        pytest.param([(2, 20, 9, 10), (1, 72, 14, 14)], marks=pytest.mark.long),
    ],
    ids=["one tile", "several tiles and blocks, odd edges"],
)
def test_the_kernels_compute_the_convolution_and_its_gradients(shapes: list[tuple[int, int, int, int]]) -> None:
    done = python("-m", "benchmarks.kernels.interpreted", json.dumps(shapes))
    assert done.returncode == 0, done.stderr
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert [(tuple(one["shape"]), one["dtype"]) for one in found] == [
        (shape, dtype) for shape in shapes for dtype in ("float32", "bfloat16")
    ]
    for one in found:
        y, x, weight, bias = one["ours"].values()
        # In bf16 the results are rounded once, 2**-8 of the value at most; the weight's and bias's gradients are not.
        assert max(y, x) < (1e-6 if one["dtype"] == "float32" else 2**-7)
        assert max(weight, bias) < 1e-6


@pytest.mark.thorough
def test_the_operator_has_the_gradients_of_what_it_computes_and_says_what_it_returns() -> None:
    generator = torch.Generator().manual_seed(0)

    def drawn(*extents: int) -> Tensor:
        return torch.randn(extents, generator=generator, dtype=torch.float64).requires_grad_()

    x, weight, bias = drawn(2, 3, 5, 4), drawn(3, 1, 7, 7), drawn(3)
    assert torch.autograd.gradcheck(depthwise.depthwise, (x, weight, bias))
    single = [tensor.detach().float().requires_grad_() for tensor in (x, weight, bias)]
    torch.library.opcheck(depthwise.depthwise, tuple(single))
    torch.library.opcheck(depthwise.depthwise_backward, (single[0].detach(), *(one.detach() for one in single[:2])))


def test_a_model_with_ours_learns_what_one_with_torchs_learns_under_the_same_names() -> None:
    theirs, ours = (architecture.build("nano", 10, seed=1) for _ in range(2))
    architecture.use_ours(ours, [24, 96])
    assert [m.in_channels for m in ours.modules() if getattr(m, "ours", False)] == [24, 96, 96]
    images = torch.randn(2, 3, 64, 64).contiguous(memory_format=torch.channels_last)
    for model in (theirs, ours):
        model(images).square().sum().backward()
    assert theirs.state_dict().keys() == ours.state_dict().keys()
    for (name, one), other in zip(theirs.named_parameters(), ours.parameters(), strict=True):
        assert one.grad is not None and other.grad is not None
        assert torch.allclose(one.grad, other.grad, rtol=1e-3, atol=1e-5 * float(one.grad.abs().max())), name


@pytest.mark.parametrize(("side", "channels", "extents"), [(4, 3, (32, 48)), (2, 8, (9, 7))])
def test_a_convolution_of_patches_is_a_matrix_product(side: int, channels: int, extents: tuple[int, int]) -> None:
    patches = architecture.Patches(channels, 6, side, stride=side).double()
    images = torch.randn(2, channels, *extents, dtype=torch.float64)
    assert torch.allclose(patches.multiplied(images), patches(images))


SHAPE = (24, 8)


@pytest.mark.parametrize(
    ("ranks", "by_time", "expected", "told"),
    [
        ([Measured(3.0, 1.5)], True, TRITON, "24 x 8²: ours, 3.00 and 1.50 ms"),
        ([Measured(3.0, 4.0)], True, TORCH, "24 x 8²: torch's, 3.00 and 4.00 ms"),
        ([Measured(0, 0)], False, TRITON, "24 x 8²: ours"),
        ([Measured(3.0, 1.5), Measured(3.0, 9.0)], True, TRITON, "ours"),
        ([Measured(3.0, 1.5), Measured(0, 0, "is wrong here")], True, TORCH, "torch's, as ours is wrong here"),
    ],
)
def test_the_faster_is_used_by_rank_0s_clock_if_ours_is_right_on_every_rank(
    ranks: list[Measured], by_time: bool, expected: str, told: str
) -> None:
    chosen, notes = choice.decided([{SHAPE: one} for one in ranks], by_time)
    assert chosen == {SHAPE: expected} and told in notes[0]


def test_a_kernel_that_is_wrong_or_fails_is_named_and_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    assert choice.measure(SHAPE, 2, torch.float32, CPU, timed=False) == Measured(0, 0)
    right = depthwise.depthwise
    monkeypatch.setattr(depthwise, "depthwise", lambda *given: right(*given) * 1.001)
    assert choice.measure(SHAPE, 2, torch.float32, CPU).problem.startswith("is wrong here, by ")
    monkeypatch.setattr(depthwise, "depthwise", lambda *given: right(*given) * float("nan"))
    assert choice.measure(SHAPE, 2, torch.float32, CPU).problem.startswith("is wrong here, by nan")
    monkeypatch.setattr(depthwise, "depthwise", right)
    backward = depthwise.depthwise_backward
    for number in range(3):
        factors = [float("nan") if number == at else 1.0 for at in range(3)]
        monkeypatch.setattr(
            depthwise,
            "depthwise_backward",
            lambda *given, by=factors: [one * factor for one, factor in zip(backward(*given), by, strict=True)],
        )
        assert choice.measure(SHAPE, 2, torch.float32, CPU).problem.startswith("is wrong here, by nan"), number

    def fails(*given: Tensor) -> Tensor:
        raise RuntimeError("no ptxas\nmore")

    monkeypatch.setattr(depthwise, "depthwise", fails)
    assert choice.measure(SHAPE, 2, torch.float32, CPU).problem == "does not run here (RuntimeError: no ptxas)"
    choice.check({SHAPE: TORCH}, 2, torch.float32, CPU)
    with pytest.raises(UsageError, match="does not run here") as caught:
        choice.check({SHAPE: TRITON}, 2, torch.float32, CPU)
    assert "--set kernels=torch" in str(caught.value)


@pytest.mark.parametrize("by_time", [True, False])
def test_a_kernel_that_is_wrong_or_fails_for_all_images_of_a_pass_alone_is_named_and_not_used(
    monkeypatch: pytest.MonkeyPatch, by_time: bool
) -> None:
    forward, backward = depthwise.depthwise, depthwise.depthwise_backward
    asked = [SHAPE], 4, torch.float32, CPU, by_time
    assert " as ours " not in choice.choose(*asked)[1][0]

    def fails(x: Tensor, *given: Tensor) -> Tensor:
        if len(x) > choice.CHECKED_IMAGES:
            raise RuntimeError("too many resources requested for launch")
        return forward(x, *given)

    monkeypatch.setattr(depthwise, "depthwise", fails)
    reason = "does not run here (RuntimeError: too many resources requested for launch)"
    chosen, told = choice.choose(*asked)
    assert chosen == {SHAPE: TORCH} and told[0].endswith(f": 24 x 8²: torch's, as ours {reason}")
    choice.check({SHAPE: TRITON}, choice.CHECKED_IMAGES, torch.float32, CPU)
    with pytest.raises(UsageError, match="too many resources"):
        choice.check({SHAPE: TRITON}, 4, torch.float32, CPU)

    def errs(gradient: Tensor, *given: Tensor) -> tuple[Tensor, ...]:
        found = backward(gradient, *given)
        return *found[:2], found[2] * (1.001 if len(gradient) > choice.CHECKED_IMAGES else 1)

    monkeypatch.setattr(depthwise, "depthwise", forward)
    monkeypatch.setattr(depthwise, "depthwise_backward", errs)
    chosen, told = choice.choose(*asked)
    assert chosen == {SHAPE: TORCH} and "torch's, as ours is wrong here, by 1.0e-03 of the largest value" in told[0]


def test_a_kernel_that_takes_the_gpu_with_it_ends_the_run_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    def lost(*given: Any) -> Any:
        raise RuntimeError("CUDA error: an illegal memory access was encountered\nCUDA kernel errors might be ...")

    # What follows on the device after an illegal access, which cannot be had without one.
    monkeypatch.setattr(choice, "_operands", lost)
    monkeypatch.setattr(torch.cuda, "synchronize", lost)
    with pytest.raises(WorkloadFailedError) as caught:
        choice.measure(SHAPE, 2, torch.float32, torch.device("cuda", 0))
    assert str(caught.value) == (
        "our kernel for convolutions of 24 channels of 8 x 8 pixels has made the GPU unusable (CUDA error: an illegal "
        "memory access was encountered). Train with torch's kernels: --set kernels=torch."
    )
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: None)
    assert choice.measure(SHAPE, 2, torch.float32, torch.device("cuda", 0)).problem.startswith("does not run here")


def test_a_run_keeps_to_what_it_began_with(tmp_path: Path) -> None:
    new, older, chosen = (locate(tmp_path / name) for name in ("new", "older", "chosen"))
    assert worker._kernels(new) is None
    worker._keep_kernels(new, {})  # a CPU's
    assert new.files() == []
    CheckpointStore(older.child("checkpoints"), 2).save({}, 1, {}, {})
    assert worker._kernels(older) == {}
    worker._keep_kernels(chosen, {(24, 8): TRITON, (48, 4): TORCH})
    assert worker._kernels(chosen) == {(24, 8): TRITON, (48, 4): TORCH}


@pytest.mark.parametrize(("kept", "expected"), [(None, {SHAPE: TRITON}), ({}, {}), ({SHAPE: TRITON}, {SHAPE: TRITON})])
def test_what_is_chosen_is_what_the_model_runs(
    monkeypatch: pytest.MonkeyPatch, kept: choice.Choice | None, expected: choice.Choice
) -> None:
    asked: list[Any] = []

    def choose(shapes: Any, images: int, dtype: torch.dtype, device: torch.device, by_time: bool) -> Any:
        asked.append((shapes, images, dtype, by_time))
        return {SHAPE: TRITON}, ["chosen"]

    gpu = torch.device("cuda", 0)
    monkeypatch.setattr(choice, "choose", choose)
    assert execution.kernels(small(kernels="torch"), gpu, 8, kept) == ({}, [])
    assert execution.kernels(small(), CPU, 8, kept) == ({}, [])
    assert asked == []
    config = small(precision="bf16", deterministic=True)
    monkeypatch.setattr(choice, "check", lambda *given: None)
    assert execution.kernels(config, gpu, 8, kept)[0] == expected
    shapes = architecture.depthwise_shapes(config.model, config.image_size)
    assert asked == ([] if kept is not None else [(shapes, 8, torch.bfloat16, False)])
    # On the CPU there is nothing to choose: given as a GPU would have chosen it.
    monkeypatch.setattr(execution, "kernels", lambda *given: (expected, ["chosen"] if kept is None else []))
    training, recorder = Training(small(epochs=1), Few(64), Few(16), CPU, kernels=kept), Recorder()
    training.run(recorder)
    assert [m.in_channels for m in training.model.modules() if getattr(m, "ours", False)] == [24] * len(expected)
    assert [record["text"] for record in recorder.records if record["event"] == "note"] == ["chosen"] * (kept is None)
