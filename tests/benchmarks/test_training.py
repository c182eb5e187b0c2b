"""The benchmarks of a training step run, and count what they say they count."""

from __future__ import annotations

import dataclasses
import itertools
import json
import multiprocessing
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from benchmarks import step_time
from benchmarks.gpu import __main__ as gpu
from benchmarks.gpu import parts, steps
from benchmarks.harness.apart import measured_apart
from benchmarks.harness.command import exit_code
from benchmarks.harness.figures import today
from benchmarks.harness.training import CLASSES, Prepared
from emulator.machine import processes
from oasis_stack.command_line.stack_file import ROOT
from tests.support import bare_machine, measurements
from tests.support.processes import python, write_program
from tests.support.training import CPU
from tests.support.waiting import eventually
from workloads.convnext import config as configuration
from workloads.convnext.learning.model import build

pytestmark = pytest.mark.thorough


@pytest.fixture(autouse=True)
def one_thread() -> None:
    """As the benchmark has it."""
    torch.set_num_threads(1)


@pytest.mark.parametrize("recipe", [False, True])
def test_three_loops_take_turns_on_the_same_model_and_images(recipe: bool) -> None:
    config = step_time.configured("nano", 32, 8, recipe)
    assert bool(config.mixup) == recipe
    work = step_time.LoopWork(config, recipe, Prepared(config, CPU), CPU)
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


def test_on_a_gpu_the_loops_have_it_by_its_number_as_torch_wants_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    devices: list[torch.device] = []

    def measured(work: step_time.LoopWork, steps: int) -> dict[str, float]:
        devices.append(work.device)
        return {"oasis": 1.0, "timm": 1.0}

    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.get_device_name", lambda device: "NVIDIA H200")
    monkeypatch.setattr(step_time, "Prepared", lambda config, device: None)
    monkeypatch.setattr(step_time, "measured", measured)
    assert step_time.main(["--rounds", "1", "--results", str(tmp_path / "step_time.json")]) == 0
    assert devices == [torch.device("cuda", 0)] * 2


TINY = dataclasses.replace(configuration.synthetic_a3_ultra(), model="nano", image_size=32, batch_size=32)


def test_a_setting_of_the_gpu_benchmark_is_measured_and_split_by_kind() -> None:
    figures = steps.measured(dataclasses.replace(TINY, **gpu.SMOKE_MODES["fp32"]), windows=2, steps=2)
    assert figures["images per second"]["median"] > 0
    assert 0 < figures["MFU of that"] < 1
    assert 0 <= figures["milliseconds per step idle"] < figures["milliseconds per step"]
    kinds = {"matrix products", "depthwise", "layer norm", "elementwise", "optimiser"}
    assert set(figures["milliseconds per step by kind"]) == kinds


def test_the_parts_of_a_step_are_measured_at_the_model_s_shapes() -> None:
    convolutions = parts.depthwise_convolutions(TINY)
    assert list(convolutions) == ["24 x 8 x 8", "48 x 4 x 4", "96 x 2 x 2", "192 x 1 x 1"]
    assert all(milliseconds > 0 for one in convolutions.values() for milliseconds in one.values())
    large, *products = parts.matrix_products(TINY).items()
    assert [name for name, _ in products] == ["2048 x 24 x 96", "512 x 48 x 192", "128 x 96 x 384", "32 x 192 x 768"]
    assert [len(one) for _, one in (large, *products)] == [1, 3, 3, 3, 3]
    assert all(rate > 0 for _, one in (large, *products) for rate in one.values())


def test_decoding_is_measured_with_a_process_on_each_core(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "PICTURES", 1)
    monkeypatch.setattr(parts, "DECODED_SECONDS", 0.0)
    found = parts.decoding(TINY)
    assert found["pictures per second"]["least"] > 0 and found["processes"] == os.cpu_count()


@pytest.mark.parametrize(
    ("operation", "shapes", "kernel", "kind"),
    [
        ("aten::convolution_backward", [[8, 24, 8, 8], [8, 24, 8, 8], [24, 1, 7, 7]], "cudnn::dgrad2d", "depthwise"),
        ("aten::cudnn_convolution", [[8, 3, 32, 32], [24, 3, 4, 4]], "sm90_xmma_fprop", "matrix products"),
        ("aten::addmm", [[96], [512, 24], [24, 96]], "nvjet_tst_128x256", "matrix products"),
        ("CompiledFunction", [], "triton_per_fused_native_layer_norm_3", "layer norm"),
        ("CompiledFunction", [], "triton_poi_fused_gelu_5", "elementwise"),
        # The depthwise convolution's bias, and a change of layout before it: neither convolves.
        ("CompiledFunction", [], "triton_poi_fused__to_copy_convolution_2", "elementwise"),
        ("aten::convolution", [[8, 24, 8, 8], [24, 1, 7, 7]], "triton_poi_fused_convolution_mul_4", "elementwise"),
        ("CompiledFunction", [], "triton_per_fused_convolution_native_layer_norm_backward_8", "layer norm"),
        ("CompiledFunction", [], "triton_tem_fused_addmm_gelu_6", "matrix products"),
        ("aten::native_layer_norm_backward", [], "GammaBetaBackward", "layer norm"),
        ("aten::_fused_adamw_", [], "multi_tensor_apply_kernel", "optimiser"),
        ("aten::_foreach_lerp_", [], "multi_tensor_apply_kernel", "optimiser"),
        ("aten::gelu_backward", [[8, 8, 8, 96]], "vectorized_elementwise_kernel", "elementwise"),
    ],
)
def test_a_kernel_is_counted_to_what_launched_it(
    operation: str, shapes: list[list[int]], kernel: str, kind: str
) -> None:
    assert steps.kind(operation, shapes, kernel) == kind


def test_a_gpu_is_idle_where_no_kernel_runs_though_two_run_at_a_time_or_the_program_names_a_span() -> None:
    def event(begun: float, ended: float, device: str = "CUDA", named: bool = False) -> SimpleNamespace:
        return SimpleNamespace(
            time_range=SimpleNamespace(start=begun, end=ended),
            device_type=SimpleNamespace(name=device),
            is_user_annotation=named,
        )

    kernels = [event(1000, 4000), event(3000, 5000), event(3500, 3600), event(9000, 10000)]
    others = [event(0, 20000, "CPU"), event(0, 20000, named=True)]
    assert steps.busy([*others, *reversed(kernels)], on_gpu=True) == 5.0 / steps.PROFILED_STEPS


def test_a_gpu_of_which_the_profiler_shows_nothing_is_not_called_idle(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steps, "busy", lambda events, on_gpu: 0.0)
    assert "milliseconds per step idle" not in steps.measured(
        dataclasses.replace(TINY, **gpu.SMOKE_MODES["fp32"]), windows=1, steps=1
    )


def test_what_cannot_be_compiled_is_no_figure_and_loses_no_other(tmp_path: Path) -> None:
    """The command, with few steps, where no package is installed that it needs not."""
    results = tmp_path / "gpu.json"
    words = ["--smoke", "--windows", "1", "--steps", "1", "--results", str(results)]
    bare = bare_machine.variables(tmp_path, "torch", "torchvision", "scipy")
    # Time: no trial of each instruction set, and no pool of processes that import torch.
    quick = {"TORCHINDUCTOR_VEC_ISA_OK": "1", "TORCHINDUCTOR_COMPILE_THREADS": "1", "OMP_NUM_THREADS": "1"}
    broken = {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "cache"), "CXX": "/nonexistent"}
    done = python("-m", "benchmarks.gpu", *words, env=bare | quick | broken, timeout=300)
    assert done.returncode == 5, done.stderr
    settings = json.loads(results.read_text())["settings"]
    assert settings["nano, fp32, 32"]["images per second"]["median"] > 0
    assert settings["nano, depthwise, 32"]["24 x 8 x 8"]["ours ms"] > 0
    assert settings["nano, decoding, 32"] == {
        "date": today(),
        "needs": "pyarrow, which is not installed here",
    }
    assert "torch.compile does not work here" in settings["nano, fp32+compile, 32"]["failed"]
    assert "images per second" not in settings["nano, fp32+compile, 32"]


def test_each_setting_is_kept_before_the_next_one_begins_and_measured_again_if_it_failed_or_is_to_be_fresh(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    results, kept = tmp_path / "gpu.json", list[dict[str, Any]]()

    def measured(*_: object, seconds: float) -> dict[str, Any]:
        kept.append(json.loads(results.read_text())["settings"] if results.exists() else {})
        return {"number": len(kept)} | ({"failed": "this once"} if len(kept) == 1 else {})

    monkeypatch.setattr(gpu, "measured_apart", measured)
    words = ["--smoke", "--results", str(results), "--modes", "fp32", "fp32+compile"]
    first, second = "nano, fp32, 32", "nano, fp32+compile, 32"
    assert [gpu.main(words) for _ in range(3)] == [5, 0, 0]
    assert gpu.main([*words[:3], "--modes", "fp32+compile", "--fresh"]) == 0
    assert [list(before) for before in kept] == [[], [first], [first, second], [first]]
    found = json.loads(results.read_text())["settings"]
    assert {name: one["number"] for name, one in found.items()} == {first: 3, second: 4}


def test_an_nvidia_smi_that_fails_costs_its_own_facts_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a container that hides the driver's tools: torch measures all the same."""
    write_program(tmp_path / "nvidia-smi", "exit 9")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.get_device_name", lambda device: "NVIDIA H200")
    monkeypatch.setattr("torch.backends.cudnn.version", lambda: 91002)
    facts = gpu.machine()
    assert facts["device"] == "NVIDIA H200" and not any("clocks" in name for name in facts)


def test_a_smoke_test_leaves_a_gpu_s_file_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the first measurement on a GPU would be refused after a try of the command on a CPU."""
    monkeypatch.setattr(gpu, "RESULTS", tmp_path / "gpu.json")
    monkeypatch.setattr(gpu, "SMOKE_RESULTS", tmp_path / "gpu-smoke.json")
    monkeypatch.setattr(gpu, "measured_apart", lambda *_, seconds: {})
    assert gpu.main(["--smoke"]) == 0
    assert [file.name for file in tmp_path.iterdir()] == ["gpu-smoke.json"]


@pytest.mark.parametrize("words", [(), ("--fresh",)])
def test_another_machine_s_figures_are_not_replaced(
    words: Sequence[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A CPU's, or those of another release of torch, would take the place of a GPU's, which are not easily had."""
    results = tmp_path / "gpu.json"
    before = '{"machine": {"device": "NVIDIA H200"}, "settings": {}}'
    results.write_text(before)
    monkeypatch.setattr(gpu, "measured_apart", lambda *_, seconds: {})
    assert exit_code(lambda: gpu.main(["--smoke", "--results", str(results), *words])) == 2
    assert results.read_text() == before
    assert (
        f'{results} has figures of another machine or other software: {{"device": "NVIDIA H200"}}.'
        in capsys.readouterr().err
    )


def test_what_tells_the_most_is_measured_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr(gpu, "machine", dict)
    monkeypatch.setattr(gpu, "measured_apart", lambda *_, seconds: {})

    def measured(*words: str) -> list[str]:
        results = tmp_path / f"{'-'.join(words)}.json"
        assert gpu.main(["--results", str(results), *words]) == 0
        return list(json.loads(results.read_text())["settings"])

    parts_first = [f"base, {name}, {{}}" for name in ("depthwise", "products", "decoding")]
    modes = [f"base, {mode}, {{}}" for mode in gpu.MODES]
    assert modes[0] == "base, bf16+compile, {}"
    for first, second in ((256, 64), (64, 256)):
        expected = [name.format(first) for name in (*parts_first, *modes)] + [name.format(second) for name in modes]
        assert measured("--batch-sizes", str(first), str(second)) == expected
    assert measured("--modes", "products", "bf16") == ["base, products, 256", "base, bf16, 256", "base, bf16, 64"]


@pytest.fixture
def in_turn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[int, dict[str, Any]]]:
    """The command on measurements that end in these ways: its exit code, and what it has kept."""
    results = tmp_path / "gpu.json"

    def measure(*ways: str, words: Sequence[str] = ()) -> tuple[int, dict[str, Any]]:
        monkeypatch.setattr(gpu, "measurements", lambda *_: {way: partial(measurements.ending, way) for way in ways})
        code = exit_code(lambda: gpu.main(["--smoke", "--results", str(results), *words]))
        return code, {name: one.get("failed") for name, one in json.loads(results.read_text())["settings"].items()}

    return measure


def test_a_measurement_that_raises_or_dies_has_failed_and_the_next_one_is_measured(
    in_turn: Callable[..., tuple[int, dict[str, Any]]],
) -> None:
    log = "the kernel's log says whether memory had ended"
    assert in_turn("error", "exit", "signal", "well") == (
        5,
        {
            "error": "RuntimeError: CUDA error: an illegal memory access was encountered",
            "exit": f"its process died (exit code 3); {log}",
            "signal": f"its process died (Killed); {log}",
            "well": None,
        },
    )


def test_a_measurement_that_never_ends_has_failed_and_the_next_one_is_measured(
    in_turn: Callable[..., tuple[int, dict[str, Any]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    limits: list[float] = []

    def hurried(measure: partial[Any], seconds: float) -> Any:
        limits.append(seconds)
        return measured_apart(measure, seconds=1.0 if measure.args == ("never",) else seconds)

    monkeypatch.setattr(gpu, "measured_apart", hurried)
    code, found = in_turn("never", "well", words=["--minutes-each", "4"])
    assert (code, found) == (5, {"never": "not measured within 4 minutes", "well": None})
    assert limits == [240, 240]
    assert measured_apart(measurements.ending, "never", seconds=0) is None
    assert not multiprocessing.active_children()


def test_when_time_is_over_what_runs_is_ended_and_what_is_left_is_named_with_the_command_that_goes_on(
    in_turn: Callable[..., tuple[int, dict[str, Any]]],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    now, allowed = 1000.0, list[float]()

    def measured(*_: object, seconds: float) -> dict[str, Any] | None:
        """Takes 100 seconds, where it may."""
        nonlocal now
        now += min(seconds, 100.0)
        allowed.append(seconds)
        return {} if seconds > 100 else None

    monkeypatch.setattr(gpu, "measured_apart", measured)
    monkeypatch.setattr(gpu, "time", SimpleNamespace(monotonic=lambda: now))
    words = ["--fresh", "--minutes", "4", "--minutes-each", "2"]
    assert in_turn("a", "b", "c", "d", words=words) == (10, {"a": None, "b": None})
    assert allowed == [120.0, 120.0, 40.0]
    *said, problem, remedy = capsys.readouterr().err.splitlines()
    assert [line for line in said if "at most" in line] == [
        f"{name}: at most {limit} minutes" for name, limit in (("a", "2"), ("b", "2"), ("c", "0.667"))
    ]
    assert problem == "error: 4 minutes are over; not measured: c; d."
    told, _, command = remedy.partition(": python -m benchmarks.gpu ")
    assert told == "To go on" and "--fresh" not in command
    assert in_turn("a", "b", "c", "d", words=shlex.split(command)) == (0, dict.fromkeys("abcd"))
    assert len(allowed) == 5


def test_nothing_is_begun_when_time_is_over(
    in_turn: Callable[..., tuple[int, dict[str, Any]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = itertools.count(0.0, 60.0)
    monkeypatch.setattr(gpu, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    monkeypatch.setattr(gpu, "measured_apart", lambda *_, seconds: {})
    assert in_turn("well", words=["--fresh", "--minutes", "1"]) == (10, {})


@pytest.mark.parametrize(("windows", "steps"), [(0, 20), (7, 0), (20, 50)])
def test_windows_that_are_empty_or_outlast_an_epoch_are_refused(
    windows: int, steps: int, in_turn: Callable[..., tuple[int, dict[str, Any]]], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        in_turn("well", words=["--windows", str(windows), "--steps", str(steps)])
    assert "at least 1, and all windows together have at most 986 steps" in capsys.readouterr().err


@pytest.mark.parametrize("length", ["0", "-1", "nan", "inf", "soon"])
def test_a_length_of_time_that_cannot_be_waited_for_is_refused(
    length: str, in_turn: Callable[..., tuple[int, dict[str, Any]]]
) -> None:
    for option in ("--minutes", "--minutes-each"):
        with pytest.raises(SystemExit, match="2"):
            in_turn("well", words=[f"{option}={length}"])


def test_ctrl_c_leaves_neither_the_measurement_nor_what_it_started(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        measured_apart(measurements.interrupting, tmp_path / "pids", seconds=60)
    pids = [int(pid) for pid in (tmp_path / "pids").read_text().split()]
    assert len(pids) == 2
    eventually(lambda: not any(map(processes.start_time, pids)), seconds=60)


def test_a_command_that_is_killed_takes_its_measurement_with_it(tmp_path: Path) -> None:
    """As what goes on measuring would share the GPU with the next command, and nobody would know."""
    program = (
        "import sys, pathlib; from benchmarks.harness.apart import measured_apart; from tests.support import "
        "measurements; measured_apart(measurements.interrupting, pathlib.Path(sys.argv[1]), 9, seconds=60)"
    )
    done = subprocess.run([sys.executable, "-c", program, str(tmp_path / "pids")], cwd=ROOT, check=False)
    assert done.returncode == -signal.SIGKILL
    measurement, started = map(int, (tmp_path / "pids").read_text().split())
    os.kill(started, signal.SIGKILL)
    eventually(lambda: not processes.start_time(measurement), seconds=10)


def test_what_does_not_fit_is_a_result_too(monkeypatch: pytest.MonkeyPatch) -> None:
    def exhausted(*_: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    config = dataclasses.replace(configuration.digits_laptop(), image_size=32, batch_size=4)
    monkeypatch.setattr("workloads.convnext.learning.execution.autocast", exhausted)
    assert "do not fit the memory" in steps.measured(config, windows=1, steps=1)["does not fit"]
