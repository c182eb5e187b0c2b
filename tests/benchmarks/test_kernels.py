"""Our kernels as an H200 would run them, and what a step could take at least."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import torch

from benchmarks.kernels import __main__ as kernels
from benchmarks.kernels import assembly, step
from workloads.convnext.kernels import depthwise


@pytest.mark.thorough
@pytest.mark.parametrize(("channels", "side"), kernels.SHAPES)
def test_for_an_h200_the_kernels_keep_their_sums_in_registers(channels: int, side: int) -> None:
    for one in assembly.PASSES:
        code = assembly.built(one, channels, side)
        assert (code.spilled, code.instructions["LDL"], code.instructions["STL"]) == (0, 0, 0)
        assert code.registers <= 168, (one, side, code.registers)
        # In its longest loop, a thread multiplies each of its pixels with what it needs of seven taps, in fp32; of an
        # image that is one tile high, 12 of the 49 products of a column are with rows outside.
        pixels = depthwise.COLUMNS * depthwise.CHANNELS // (32 * assembly.warps(one))
        assert code.loop["FFMA"] == (37 if side == 7 else 49) * pixels


@pytest.mark.thorough
def test_the_least_times_of_one_small_shape_and_of_a_step_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernels, "SHAPES", [(64, 7)])
    assert kernels.main(["--results", str(tmp_path / "kernels.json")]) == 0
    found = json.loads((tmp_path / "kernels.json").read_text())
    assert list(found["kernels"]) == [f"64 x 7², {one}" for one in assembly.PASSES]
    for one in found["kernels"].values():
        assert one["bytes an image"] == 4 * 64 * 49 and one["operations an image"] == 98 * 64 * 49
        assert 0 < one["least ms"]["memory"] < one["least ms"]["fp32 cores"] < one["least ms"]["instructions"]
    whole = found["a step, per image"]
    assert whole["all"]["operations"] == pytest.approx(92.1e9, rel=2e-3)
    assert all(part["least us"] < part.get("measured us", 1e3) for part in whole.values() if isinstance(part, dict))


@pytest.mark.thorough
def test_errors_of_an_interpreted_kernel_are_kept_and_one_that_is_too_large_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(kernels, "SHAPES", [(4, 2)])
    monkeypatch.setattr(kernels, "PASSES", ())
    results = tmp_path / "kernels.json"
    assert kernels.main(["--interpret", "--results", str(results)]) == 0
    monkeypatch.setattr(kernels, "ERROR", {torch.float32: 1.0, torch.bfloat16: 1e-9})
    assert kernels.main(["--interpret", "--results", str(results)]) == 1
    found = json.loads(results.read_text())["errors"]
    assert list(found) == [
        f"4 x 2², {images}, {dtype}" for images in ("1 image", "2 images") for dtype in ("float32", "bfloat16")
    ]
    assert all(max(one["ours"].values()) < 2**-7 and max(one["torch"].values()) < 2**-5 for one in found.values())
    assert re.findall(r"wrong: (.*): an error", capsys.readouterr().err) == [name for name in found if "bf" in name]


def test_the_loop_that_counts_is_the_longest_and_padding_is_not_counted() -> None:
    code = """
.L_x_0:
        /*0000*/                   FADD R1, R2, R3 ;
.L_x_1:
        /*0010*/                   LDG.E.64 R4, desc[UR4][R6.64] ;
        /*0020*/              @!P1 FFMA R8, R4, R5, R8 ;
        /*0030*/               @P1 BRA `(.L_x_1) ;
        /*0040*/                   STG.E desc[UR4][R6.64], R8 ;
        /*0050*/                   EXIT ;
.L_x_2:
        /*0060*/                   BRA `(.L_x_2);
        /*0070*/                   NOP;
"""
    every, loop = assembly.counted(code)
    assert every == {"FADD": 1, "LDG": 1, "FFMA": 1, "BRA": 2, "STG": 1, "EXIT": 1}
    assert loop == {"LDG": 1, "FFMA": 1, "BRA": 1}


def test_a_part_takes_as_long_as_the_slower_of_its_bytes_and_its_operations() -> None:
    part = step.Part()
    part.add(step.HBM, 1, step.CUDA_CORES)
    part.add(1, 2 * step.CUDA_CORES, step.CUDA_CORES, times=3)
    assert part.microseconds == 7e6
