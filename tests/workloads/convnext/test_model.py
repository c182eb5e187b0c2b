"""The model: torchvision's, with stochastic depth drawn per image; and how it is compiled."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
import torch._functorch.config as functorch
import torch._inductor.config as inductor
from torch import Tensor, nn
from torch._subclasses import FakeTensorMode
from torch.func import functional_call
from torch.utils._python_dispatch import TorchDispatchMode
from torchvision.models.convnext import CNBlockConfig, ConvNeXt

from tests.support.training import CPU, small
from workloads.convnext.config import STAGES
from workloads.convnext.kernels import depthwise
from workloads.convnext.learning import execution
from workloads.convnext.learning.model import (
    AveragedWeights,
    Block,
    Norm,
    StochasticDepth,
    build,
    depthwise_shapes,
    parameter_groups,
    use_ours,
)


def grown(model: nn.Module) -> nn.Module:
    """Layer scales begin at 1e-6, where a block that computes nonsense would go unnoticed."""
    for name, parameter in model.named_parameters():
        if name.endswith("layer_scale"):
            nn.init.uniform_(parameter, 0.5, 1.5)
    return model


def gradients(model: nn.Module, images: Tensor) -> dict[str, Tensor]:
    model.zero_grad()
    model(images).square().sum().backward()
    return {name: parameter.grad.clone() for name, parameter in model.named_parameters() if parameter.grad is not None}


def test_the_model_computes_what_torchvisions_computes_with_its_weights() -> None:
    widths, depths = STAGES["nano"]
    stages = [CNBlockConfig(*stage) for stage in zip(widths, (*widths[1:], None), depths, strict=True)]
    theirs, ours = grown(ConvNeXt(stages, num_classes=10)), build("nano", classes=10, seed=0)
    ours.load_state_dict(theirs.state_dict())
    images = torch.randn(4, 3, 64, 64)
    assert torch.allclose(ours(images), theirs(images), atol=1e-5)
    expected, got = gradients(theirs, images), gradients(ours, images)
    assert expected.keys() == got.keys()
    for name, gradient in expected.items():
        assert torch.allclose(got[name], gradient, rtol=1e-3, atol=1e-4 * float(gradient.abs().max())), name


def test_stochastic_depth_skips_the_stated_share_and_keeps_the_mean() -> None:
    model = build("nano", classes=10, seed=0)
    depth = StochasticDepth(model, 0.4, seed=3, device=CPU)
    depth.draw(torch.arange(20_000), epoch=2)
    blocks = [module for module in model.modules() if isinstance(module, Block)]
    kept = torch.stack([block.keep.flatten() for block in blocks if block.keep is not None])
    assert kept.shape == (5, 20_000)
    assert (kept == 0).float().mean(1).tolist() == pytest.approx([0, 0.1, 0.2, 0.3, 0.4], abs=0.012)
    assert kept.mean(1).tolist() == pytest.approx([1] * 5, abs=0.02)
    depth.draw(torch.tensor([7, 3]), epoch=2)
    assert [block.keep.flatten().tolist() for block in blocks if block.keep is not None] == kept[:, [7, 3]].tolist()
    depth.draw(torch.arange(20_000), epoch=3)
    assert not torch.equal(torch.stack([block.keep.flatten() for block in blocks if block.keep is not None]), kept)


def test_a_skipped_block_is_the_identity_in_training_and_runs_in_evaluation() -> None:
    block = Block(8, 1.0, 0.0)
    images = torch.randn(2, 8, 6, 6)
    block.keep = torch.tensor([0.0, 1.0]).view(2, 1, 1, 1)
    out = block(images)
    assert torch.equal(out[0], images[0])
    assert not torch.allclose(out[1], images[1], atol=1e-3)
    assert not torch.allclose(block.eval()(images)[0], images[0], atol=1e-3)


def test_only_matrices_and_kernels_decay() -> None:
    model = build("nano", classes=10, seed=0)
    decayed, others = (group["params"] for group in parameter_groups(model, 0.05))
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    assert len(decayed) + len(others) == len(names)
    assert {names[id(parameter)].rsplit(".", 1)[1] for parameter in decayed} == {"weight"}
    assert all("layer_scale" in names[id(p)] or p.dim() == 1 for p in others)


def test_the_average_follows_the_weights_and_takes_their_place_only_for_a_while() -> None:
    model = nn.Linear(1, 1, bias=False)
    nn.init.constant_(model.weight, 0.0)
    average = AveragedWeights(model, 0.5)
    nn.init.constant_(model.weight, 8.0)
    average.update(step=1000)
    with average.in_place():
        assert model.weight.item() == 4.0
    assert model.weight.item() == 8.0
    assert average.state()[0].item() == 4.0
    # Early on the average would still be the initial weights: its decay begins at 2/11.
    average.update(step=1)
    assert average.state()[0].item() == pytest.approx(8 - 4 * 2 / 11)


@contextmanager
def cudas_autocast() -> Iterator[None]:
    """bf16 by CUDA's lists of operators, which differ from the CPU's: there layer_norm gives fp32, here bf16.

    `torch.autocast` turns itself off where there is no GPU; fake tensors need none.
    """
    before = torch.get_autocast_dtype("cuda")
    torch.set_autocast_dtype("cuda", torch.bfloat16)
    torch.set_autocast_enabled("cuda", True)
    try:
        yield
    finally:
        torch.set_autocast_enabled("cuda", False)
        torch.set_autocast_dtype("cuda", before)
        torch.clear_autocast_cache()


class Operators(TorchDispatchMode):
    """Counts the calls of each operator."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: Counter[Any] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.calls[func] += 1
        return func(*args, **kwargs or {})


def test_on_a_gpu_in_bf16_all_36_blocks_of_convnext_base_take_and_give_bf16_and_convolve_by_our_kernel() -> None:
    with torch.device("meta"):
        model = build("base", classes=1000, seed=0)
    use_ours(model, [channels for channels, _ in depthwise_shapes("base", 224)])
    given = []
    for module in model.modules():
        if isinstance(module, Block):
            module.register_forward_hook(
                lambda _, taken, out: given.append((taken[0].dtype, out.dtype, out.device.type))
            )
    with FakeTensorMode(), cudas_autocast(), Operators() as operators:
        weights = {
            name: torch.empty_strided(weight.shape, weight.stride(), device="cuda:0")
            for name, weight in model.named_parameters()
        }
        functional_call(model, weights, torch.empty(256, 3, 224, 224, device="cuda:0"))
    assert given == [(torch.bfloat16, torch.bfloat16, "cuda")] * 36
    assert operators.calls[depthwise.depthwise._opoverload] == 36


def test_a_norm_of_bf16_is_computed_in_fp32_and_rounded_once() -> None:
    norm, images = Norm(128, eps=1e-6), (3 * torch.randn(500, 128, 1, 1)).bfloat16()
    nn.init.uniform_(norm.weight, 0.5, 1.5)
    nn.init.uniform_(norm.bias)
    found = norm(images)
    exact = norm.double()(images.double())
    assert found.dtype == torch.bfloat16
    assert torch.allclose(found.double(), exact, rtol=2**-8, atol=1e-5)
    # With weights in bf16 too, as torch's CUDA kernel wants them for such images, these would be rounded besides.
    assert not torch.allclose(norm.bfloat16()(images).double(), exact, rtol=2**-8, atol=1e-5)


@pytest.mark.thorough
def test_without_a_compiler_the_model_runs_eager_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    plain, _, _ = execution.executable(small(), 10, CPU, 2)
    monkeypatch.setattr(inductor.cpp, "cxx", ("/nowhere/c++",))
    monkeypatch.setattr(inductor, "fx_graph_cache", False)
    monkeypatch.setattr(functorch, "enable_autograd_cache", False)
    model, depth, notes = execution.executable(small(compile=True, drop_path=0.1), 10, CPU, 2)
    assert len(notes) == 1
    assert notes[0].startswith("torch.compile does not work here (InductorError: InvalidCxxCompiler: No working C++")
    assert notes[0].endswith("; the model runs eager")
    assert depth is not None
    images = torch.randn(2, 3, 32, 32)
    assert torch.equal(model.eval()(images), plain.eval()(images))


@pytest.mark.thorough
def test_a_compiled_model_computes_what_an_eager_one_computes() -> None:
    config = small(compile=True, drop_path=0.5)
    images = torch.randn(4, 3, 32, 32).contiguous(memory_format=torch.channels_last)
    captured = []

    def backend(graph: torch.fx.GraphModule, inputs: list[Tensor]) -> Callable[..., Any]:
        captured.append(graph)
        return graph.forward

    # Everything but Inductor's own code, which takes most of a minute to build.
    with torch.compiler.set_stance("default", force_backend=backend):
        model, depth, notes = execution.executable(config, 10, CPU, 4)
        assert (notes, len(captured)) == ([], 9), "four sizes of blocks, five other parts"
        assert depth is not None
        assert model.state_dict().keys() == build("nano", classes=10, seed=0).state_dict().keys()
        depth.draw(torch.arange(4), epoch=1)
        compiled = gradients(grown(model), images)
        assert len(captured) == 9, "another step compiled again"
        with execution.eager(config):
            eager = gradients(model, images)
            model.eval()(images[:3])
        assert len(captured) == 9, "evaluation compiled"
    for name, gradient in eager.items():
        assert torch.allclose(compiled[name], gradient, rtol=1e-3, atol=1e-4 * float(gradient.abs().max())), name


@pytest.mark.parametrize(("autotune", "expected"), [(False, {}), (True, {"max_autotune": True})])
def test_inductor_times_its_own_matrix_products_where_that_is_wanted_and_holds_no_graphs(
    monkeypatch: pytest.MonkeyPatch, autotune: bool, expected: dict[str, bool]
) -> None:
    modes: set[str | None] = set()
    monkeypatch.setattr(nn.Module, "compile", lambda unit, mode, **_: modes.add(mode))
    execution.executable(small(compile=True, autotune=autotune), 10, CPU, 2)
    (mode,) = modes
    options = torch._inductor.list_mode_options(mode) if mode else {}
    assert options.items() >= expected.items() and not options.get("triton.cudagraphs")


@pytest.mark.thorough
def test_compiled_in_bf16_a_block_keeps_nothing_of_an_images_size_in_fp32(monkeypatch: pytest.MonkeyPatch) -> None:
    block = build("nano", classes=10, seed=0).get_submodule("features.1.0")
    norm = block.get_submodule("block.2")
    images = torch.randn(2, 24, 16, 16).bfloat16().requires_grad_()
    kept: list[Tensor] = []
    # As CUDA's autocast does: the CPU's would norm in bf16.
    by_torch = norm.forward
    monkeypatch.setattr(norm, "forward", lambda input: by_torch(input.float()))
    for backend in ("eager", "aot_eager_decomp_partition"):  # the latter has Inductor's decompositions and partition
        kept.clear()
        block.compile(backend=backend, fullgraph=True)
        with (
            torch.autocast("cpu", torch.bfloat16),
            torch.autograd.graph.saved_tensors_hooks(lambda tensor: kept.append(tensor) or tensor, lambda kept: kept),
        ):
            block(images)
        wide = [tensor for tensor in kept if tensor.numel() >= images.numel() and tensor.dtype == torch.float32]
        assert (len(kept) > 8, len(wide)) == (True, backend == "eager")
