"""How the loop runs with what GPUs are given: bf16, TF32, and Inductor's code under DDP."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch._inductor.runtime.cache_dir_utils import cache_dir, triton_cache_dir
from torch.backends import cuda

from tests.support import gloo
from tests.support.training import CPU, Few, Recorder, small, weights
from workloads.convnext.learning import execution
from workloads.convnext.learning import model as architecture
from workloads.convnext.learning.loop import Training
from workloads.convnext.run import stall, worker
from workloads.doctor import command as doctor
from workloads.doctor.finding import Subject
from workloads.errors import WorkloadFailedError
from workloads.nccl.definitions.collectives import Seat

GPU = torch.device("cuda", 0)

cudnn: Any = torch.backends.cudnn  # whose `conv` has no declared type


@pytest.fixture
def switches(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Those of a GPU, which torch has without one too, as they were afterwards."""
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: None)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda: True)
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", "")
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG")
    before = cuda.matmul.fp32_precision, cudnn.fp32_precision, cudnn.conv.fp32_precision, cudnn.benchmark
    yield
    torch.set_float32_matmul_precision("highest")
    cuda.matmul.fp32_precision, cudnn.fp32_precision, cudnn.conv.fp32_precision, cudnn.benchmark = before
    torch.use_deterministic_algorithms(False)


@pytest.mark.thorough
def test_in_bf16_a_run_learns_and_what_lasts_stays_fp32(monkeypatch: pytest.MonkeyPatch) -> None:
    def trained() -> tuple[Training, list[float], float, set[torch.dtype]]:
        config = small(epochs=3, batch_size=64, log_steps=1, ema_decay=0.9, drop_path=0.1, clip_norm=1.0)
        training, recorder, products = Training(config, Few(512), Few(64), CPU), Recorder(), set()
        for module in training.model.modules():
            if isinstance(module, nn.Linear | nn.Conv2d):
                module.register_forward_hook(lambda _, given, product: products.add(product.dtype))
        last = training.run(recorder)
        losses = [record["train/loss"] for record in recorder.records if record["event"] == "step"]
        return training, losses, last["val/accuracy"], products

    _, exact, _, before = trained()
    # What a GPU is given; a CPU has the same autocast, but `execution` leaves it in fp32.
    monkeypatch.setattr(execution, "autocast", lambda config, device: torch.autocast(device.type, torch.bfloat16))
    training, losses, accuracy, products = trained()
    assert (before, products) == ({torch.float32}, {torch.bfloat16})
    assert all(map(math.isfinite, losses)) and accuracy > 0.9
    assert losses != exact and losses[:8] == pytest.approx(exact[:8], rel=0.05)
    kept = training.snapshot()
    moments = [value for state in kept["optimizer"]["state"].values() for value in state.values()]
    held = [*training.model.parameters(), *kept["model"].values(), *kept["ema"], *moments]
    assert {tensor.dtype for tensor in held} == {torch.float32}


@pytest.mark.parametrize(
    ("precision", "products", "halved"), [("fp32", "ieee", False), ("tf32", "tf32", False), ("bf16", "tf32", True)]
)
def test_precision_sets_a_gpu_s_switches_whatever_they_were_before(
    switches: None, precision: str, products: str, halved: bool
) -> None:
    config = small(precision=precision)
    for before in ("ieee", "tf32"):
        cuda.matmul.fp32_precision = cudnn.fp32_precision = cudnn.conv.fp32_precision = before
        assert execution.configure(config, GPU) == []
        found = cuda.matmul.fp32_precision, cudnn.fp32_precision, cudnn.conv.fp32_precision
        assert found == (products, products, products)
        # Which raises where the two ways to set it disagree; Inductor's max-autotune asks it before torch 2.15.
        assert torch.get_float32_matmul_precision() == ("highest" if products == "ieee" else "high")
    with execution.autocast(config, GPU):
        assert torch.is_autocast_enabled("cuda") is halved
        assert torch.get_autocast_dtype("cuda") == torch.bfloat16 or not halved
    assert not torch.is_autocast_enabled("cuda")


@pytest.mark.parametrize("deterministic", [True, False])
def test_determinism_sets_a_gpu_s_switches_whatever_they_were_before(switches: None, deterministic: bool) -> None:
    for before in (True, False):
        cudnn.benchmark = before
        torch.use_deterministic_algorithms(before)
        execution.configure(small(deterministic=deterministic), GPU)
        assert (cudnn.benchmark, torch.are_deterministic_algorithms_enabled()) == (not deterministic, deterministic)
    assert ("CUBLAS_WORKSPACE_CONFIG" in os.environ) is deterministic


@pytest.mark.parametrize("precision", ["tf32", "bf16"])
def test_a_precision_for_gpus_is_said_to_be_none_of_a_cpu_s_and_sets_nothing(switches: None, precision: str) -> None:
    cuda.matmul.fp32_precision = cudnn.fp32_precision = "ieee"
    config = small(precision=precision)
    assert execution.configure(config, CPU) == [f"precision {precision} is for GPUs; CPUs compute in fp32"]
    assert (cuda.matmul.fp32_precision, cudnn.fp32_precision) == ("ieee", "ieee")
    with execution.autocast(config, CPU):
        assert not torch.is_autocast_enabled("cpu")


def test_what_is_compiled_is_kept_on_scratch_for_all_gpus_unless_the_user_says_where(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def kept(**variables: str) -> list[str]:
        with monkeypatch.context() as context:
            for name in ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR"):
                context.setenv(name, "")  # so that it is restored, whatever is set
                context.delenv(name)
            for name, value in variables.items():
                context.setenv(name, value)
            execution.configure(small(), CPU)
            triton_s = {os.environ.get("TRITON_CACHE_DIR", triton_cache_dir(gpu)) for gpu in range(2)}
            return [cache_dir(), *sorted(triton_s)]

    theirs, scratch = str(tmp_path / "theirs"), tmp_path / "scratch"
    default = kept(OASIS_SCRATCH_MOUNT=str(scratch))  # which is not there
    assert default == [default[0], f"{default[0]}/triton/0", f"{default[0]}/triton/1"]
    scratch.mkdir()
    ours, kernels = kept(OASIS_SCRATCH_MOUNT=str(scratch))
    assert Path(ours).parent == scratch and kernels == f"{ours}/triton"
    # As importing torch's compiler leaves it.
    assert kept(OASIS_SCRATCH_MOUNT=str(scratch), TORCHINDUCTOR_CACHE_DIR=default[0]) == [ours, kernels]
    assert kept(OASIS_SCRATCH_MOUNT=str(scratch), TORCHINDUCTOR_CACHE_DIR=theirs) == [theirs, f"{theirs}/triton"]
    assert kept(OASIS_SCRATCH_MOUNT=str(scratch), TRITON_CACHE_DIR=theirs) == [ours, theirs]


def test_what_measures_compiled_code_fails_where_nothing_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    # As where a variable turns the compiler off and torch does not say so.
    monkeypatch.setattr(execution, "_compile", lambda model, autotune: None)
    monkeypatch.setattr(execution, "compiled_graphs", lambda: 0)
    with pytest.raises(WorkloadFailedError, match="compiled nothing"):
        Training(small(compile=True), Few(64), Few(16), CPU, eager_fallback=False)


def where_one_rank_cannot_compile(seat: Seat) -> tuple[bool, list[str], str]:
    """On a rank, of which the last cannot compile: whether its model is compiled, the notes, and what else is said."""

    def rehearse(*_: Any) -> None:
        if seat.rank == seat.ranks - 1:
            raise RuntimeError("no space left on device\nmore")

    execution._rehearse = rehearse
    config = small(compile=True)
    model, _, notes = execution.executable(config, 10, CPU, 2)
    compiled = any(module._compiled_call_impl for module in model.modules())
    try:
        execution.executable(config, 10, CPU, 2, fallback=False)
    except WorkloadFailedError as error:
        return compiled, notes, error.problem
    return compiled, notes, ""


@pytest.mark.thorough
def test_where_one_rank_cannot_compile_none_does_and_all_say_so() -> None:
    problem = "torch.compile does not work on 1 of 2 ranks (rank 1: RuntimeError: no space left on device)"
    expected = (False, [f"{problem}; the model runs eager"], f"{problem}.")
    assert gloo.together(2, where_one_rank_cannot_compile) == [expected, expected]


def test_what_is_compiled_counts_as_progress() -> None:
    assert worker.work  # whose module counts it
    before = stall._moves
    torch.compile(torch.neg, backend="eager")(torch.ones(3))
    assert stall._moves > before


def compiled_and_eager(_: Seat) -> list[tuple[list[str], list[float], Any]]:
    """On a rank: what is said, the losses and the weights, of a run that is to be compiled and of one that is not."""
    # Two equal blocks, which share their code: nano's nine parts take a minute to compile.
    architecture.STAGES["nano"] = ((8,), (2,))
    # As bf16 sets them on a GPU; torch refuses some readings of them, of which none may be the compiler's.
    cuda.matmul.fp32_precision = cudnn.fp32_precision = "tf32"
    found = []
    for wanted in (True, False):
        config = small(epochs=1, batch_size=32, log_steps=1, drop_path=0.3, compile=wanted)
        training, recorder = Training(config, Few(128), Few(16), CPU), Recorder()
        training.run(recorder)
        said = [record["text"] for record in recorder.records if record["event"] == "note"]
        losses = [record["train/loss"] for record in recorder.records if record["event"] == "step"]
        found.append((said, losses, weights(training).numpy()))
    return found


@pytest.mark.long
@pytest.mark.thorough
def test_two_ranks_whose_model_is_compiled_learn_what_eager_ones_learn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))  # nothing that was compiled before
    # Time: no trial of each instruction set, and no pool of processes that import torch.
    monkeypatch.setenv("TORCHINDUCTOR_VEC_ISA_OK", "1")
    monkeypatch.setenv("TORCHINDUCTOR_COMPILE_THREADS", "1")
    here = Subject(environment=None, variables=os.environ, gpus=0)
    lacking = doctor.examine("compiler", doctor.CHECKS["compiler"], here).found
    ranks = gloo.together(2, compiled_and_eager, seconds=600.0)
    for (said, losses, ends), (nothing, exact, eager) in ranks:
        if "no C++ compiler" in lacking or "no Python.h" in lacking:
            assert len(said) == 1 and said[0].endswith("; the model runs eager")
            assert losses == exact and (ends == eager).all()
        else:
            assert said == [] and list(tmp_path.rglob("*.so"))
        assert nothing == [] and len(losses) == 4
        assert losses == pytest.approx(exact, rel=1e-4)
        assert torch.allclose(torch.from_numpy(ends), torch.from_numpy(eager), atol=1e-3)
    assert (ranks[0][0][2] == ranks[1][0][2]).all()
