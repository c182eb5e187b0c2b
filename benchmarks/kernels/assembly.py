"""Our depthwise kernels compiled ahead of time for an H200 (sm_90), and what Triton's disassembler shows of them."""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from workloads.convnext.kernels import depthwise

FORWARD, DATA_GRADIENT, WEIGHT_GRADIENT = PASSES = "forward", "data gradient", "weight gradient"

TOOLS = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"

_LINE = re.compile(
    r"^(?P<label>\.L\w+):|/\*[0-9a-f]{4,}\*/\s+(?:@\S+\s+)?(?P<kind>[A-Z][A-Z0-9]*)[^`\n]*(?:`\((?P<to>\.L\w+)\))?",
    re.MULTILINE,
)


@dataclass(frozen=True)
class Assembly:
    """One kernel's code."""

    registers: int
    """Of a thread."""
    spilled: int
    """Bytes of a thread's stack: what did not fit its registers."""
    shared: int
    """Bytes of shared memory of a program."""
    instructions: Counter[str]
    """How often each kind is in the code, modifiers left out."""
    loop: Counter[str]
    """Those of them in the longest loop, in which a program spends its time."""


def warps(one: str) -> int:
    """Warps of a program of this pass."""
    return depthwise.CORRELATING_WARPS if one == WEIGHT_GRADIENT else depthwise.CONVOLVING_WARPS


def built(one: str, channels: int, side: int) -> Assembly:
    """Compile the kernel of a pass for images of these extents in bf16."""
    kernel = depthwise._depthwise_weight_gradient if one == WEIGHT_GRADIENT else depthwise._depthwise
    constants = {"HEIGHT": side, "WIDTH": side, "DEPTH": channels, "TRANSPOSED": one == DATA_GRADIENT}
    constants |= {"COLUMNS": depthwise.COLUMNS, "CHANNELS": depthwise.CHANNELS}
    names = kernel.arg_names
    kinds = {name: "*fp32" if name.split("_")[0] in ("taps", "bias", "partial") else "*bf16" for name in names}
    kinds |= {name: "constexpr" for name in names if name in constants} | {"tiles": "i32"}
    given = {(number,): constants[name] for number, name in enumerate(names) if name in constants}
    aligned = {(number,): [["tt.divisibility", 16]] for number, name in enumerate(names) if kinds[name][0] == "*"}
    source = ASTSource(kernel, {name: kinds[name] for name in names}, given, aligned)
    options = {"num_warps": warps(one), "enable_fp_fusion": True}
    compiled = triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options)
    with tempfile.TemporaryDirectory(prefix="oasis-kernels-") as folder:
        binary = Path(folder) / "kernel.cubin"
        binary.write_bytes(compiled.asm["cubin"])
        used, code = (_told(*tool, binary) for tool in (("cuobjdump", "-res-usage"), ("nvdisasm", "-c")))
    registers, stack = map(int, re.findall(r"REG:(\d+) STACK:(\d+)", used)[0])
    return Assembly(registers, stack, compiled.metadata.shared, *counted(code))


def _told(tool: str, option: str, binary: Path) -> str:
    return subprocess.run([TOOLS / tool, option, binary], capture_output=True, text=True, check=True).stdout


def counted(code: str) -> tuple[Counter[str], Counter[str]]:
    """Instructions by kind of all of a disassembled kernel, and of its longest loop; padding is not counted."""
    kinds: list[str] = []
    labels: dict[str, int] = {}
    loop: list[str] = []
    for found in _LINE.finditer(code):
        if found["label"]:
            labels[found["label"]] = len(kinds)
        elif found["kind"] != "NOP":
            kinds.append(found["kind"])
            begun = labels.get(found["to"] or "", len(kinds))
            loop = max(loop, kinds[begun:], key=len)
    return Counter(kinds), Counter(loop)
