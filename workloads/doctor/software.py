"""Checks of versions, and whether they fit together: Python, Ray, torch with torchvision, CUDA, a compiler."""

from __future__ import annotations

import json
import platform
import re
import shutil
import subprocess
import sys
import sysconfig
from importlib import import_module, metadata
from pathlib import Path

from workloads.doctor import dashboard
from workloads.doctor.finding import Doubtful, NotHere, Subject
from workloads.errors import AuthError, PlaceError, first_line

RAY_SERIES = "2.60"
"""Ray releases that the workloads are tested with; a driver needs its cluster's own."""

VERSION = "/api/version"
"""Where Ray's dashboard says its version (ray 2.60, dashboard/modules/job/job_head.py)."""

PYTHON_SERIES = ("3.11", "3.12", "3.13", "3.14")

DRIVER_FILE = Path("/proc/driver/nvidia/version")
"""The kernel module's own word: "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.65.06  Release ..."."""

LEAST_DRIVER = {11: 450, 12: 525, 13: 580}
"""Driver branch by CUDA's major version (docs.nvidia.com/deploy/cuda-compatibility, minor version compatibility)."""

MAKE_IMAGE = (
    "Run `make image STACK=...`, `pulumi up` and `make restart STACK=...`; on a laptop, install what "
    "requirements-workloads.txt lists."
)

_PAIR = "Install the pair of requirements-workloads.txt, both from the same index."
_NCCL = re.compile(r"nvidia-nccl-cu(\d+)\s*==\s*([\d.]+)")
_COMPILER = "Training runs uncompiled, slower; for torch.compile install gcc, g++ and Python's headers in the image."


def python(place: Subject) -> str:
    """Python's version."""
    series = ".".join(platform.python_version_tuple()[:2])
    if series not in PYTHON_SERIES:
        wanted = f"{PYTHON_SERIES[0]} to {PYTHON_SERIES[-1]}"
        raise PlaceError(f"Python {platform.python_version()}, where {wanted} is needed", f"Use Python {wanted}.")
    return platform.python_version()


def ray(place: Subject) -> str:
    """Ray's version: of the tested series, and the very one of the cluster around, which takes no other."""
    version = _version("ray")
    if not version.startswith(f"{RAY_SERIES}."):
        raise PlaceError(
            f"Ray {version}, where {RAY_SERIES} is needed", f"Install Ray {RAY_SERIES}, the cluster's own series."
        )
    cluster = _cluster_version(place)
    if cluster is not None and cluster[1] != version:
        raise PlaceError(
            f"Ray {version}, where the cluster at {cluster[0]} has {cluster[1]}",
            f"Install ray=={cluster[1]}; in a pod, `make restart STACK=...` gives all pods the stack's own image.",
        )
    return version


def torch(place: Subject) -> str:
    """Check that torch and torchvision are a pair: declared, importable, and with operators that run."""
    versions = {name: _version(name) for name in ("torch", "torchvision")}
    found = ", ".join(f"{name} {version}" for name, version in versions.items())
    wanted = _requirement("torchvision", re.compile(r"torch\s*==\s*([\d.]+)"))
    if wanted and versions["torch"].partition("+")[0] != wanted[1]:
        raise PlaceError(f"{found}; this torchvision was built for torch {wanted[1]}", _PAIR)
    try:
        boxes = import_module("torch").tensor([[0.0, 0.0, 2.0, 2.0], [0.0, 0.0, 2.0, 1.9], [5.0, 5.0, 6.0, 6.0]])
        scores = boxes.new_tensor([0.9, 0.8, 0.7])
        # An operator that torchvision compiles itself: a build for another torch imports, and fails at the first call.
        kept = import_module("torchvision").ops.nms(boxes, scores, 0.5).tolist()
    except (ImportError, RuntimeError, OSError, AttributeError) as error:
        reason = first_line(error)
        raise PlaceError(f"{found} do not work together: {reason}", _PAIR) from error
    if kept != [0, 2]:
        raise PlaceError(f"{found}: torchvision's nms kept boxes {kept} of 0 and 2", _PAIR)
    return f"{found}; an operator of each runs"


def cuda(place: Subject) -> str:
    """Check that driver, CUDA and NCCL fit the torch that is installed."""
    _version("torch")
    wanted = _requirement("torch", _NCCL)
    if wanted is None or sys.platform != "linux":  # macOS's torch lists what Linux's needs, too
        if place.gpus:
            raise PlaceError("this torch is built for CPUs, and the node has GPUs", MAKE_IMAGE)
        raise NotHere("this torch is built for CPUs")
    major, nccl = int(wanted[1]), wanted[2]
    _check_nccl(major, nccl)
    found = f"CUDA {major}, NCCL {nccl}"
    driver = driver_version()
    if driver is None:
        if place.gpus:
            raise PlaceError(f"{found}; the driver does not say its version", "Look at `nvidia-smi` on the node.")
        return f"{found}; no NVIDIA driver here"
    least = LEAST_DRIVER.get(major, max(LEAST_DRIVER.values()))
    if int(driver.partition(".")[0]) < least:
        raise PlaceError(
            f"driver {driver} is too old for CUDA {major} of this torch, which needs R{least} or later",
            "Set oasis:gpu.driver_version to LATEST, use a GKE version whose latest driver is that new (1.34 or later "
            "for CUDA 13), or an image with torch for an older CUDA.",
        )
    return f"{found}, driver {driver}"


def compiler(place: Subject) -> str:
    """Check that torch.compile can build what it generates: C++ for CPUs, Triton's launchers in C for GPUs."""
    _version("torch")
    programs = {
        "C compiler": (place.variables.get("CC"), "gcc", "cc", "clang"),
        "C++ compiler": (place.variables.get("CXX"), "g++", "c++", "clang++"),
    }
    path = place.variables.get("PATH", "")
    found = {
        kind: next((name for name in names if name and shutil.which(name, path=path)), "")
        for kind, names in programs.items()
    }
    missing = [kind for kind, name in found.items() if not name]
    if not Path(sysconfig.get_path("include"), "Python.h").is_file():
        missing.append("Python.h")
    if missing:
        raise Doubtful(f"there is no {' and no '.join(missing)}", _COMPILER)
    return f"{' and '.join(found.values())}, with Python's headers"


def driver_version() -> str | None:
    """Version of the NVIDIA driver: by its kernel module, else by nvidia-smi; None where there is none."""
    try:
        said = DRIVER_FILE.read_text()
    except OSError:
        said = _nvidia_smi()
    version = re.search(r"\b(\d{3,}\.\d+(?:\.\d+)?)\b", said)
    return version[1] if version else None


def _nvidia_smi() -> str:
    try:
        return subprocess.run(
            ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"],
            capture_output=True,
            text=True,
            timeout=20,
            check=False,
        ).stdout
    except (OSError, subprocess.TimeoutExpired):
        return ""


def _cluster_version(place: Subject) -> tuple[str, str] | None:
    """Address and version of the Ray around, as its dashboard says; None where there is none, or none that tells us."""
    if not place.in_cluster:
        return None
    try:
        token = dashboard.token(place)
    except AuthError:  # `access.authentication` says so
        token = None
    answers = ((address, dashboard.ask(f"{address}{VERSION}", token)) for address in dashboard.addresses(place))
    address, answer = next((found for found in answers if found[1] is not None), ("", None))
    try:
        return (address, str(json.loads(answer[1])["ray_version"])) if answer else None
    except (ValueError, KeyError, TypeError):  # a refusal, or no Ray
        return None


def _check_nccl(major: int, wanted: str) -> None:
    # Wheels for two CUDA versions install the same file, nvidia/nccl/lib/libnccl.so.2, over each other.
    installed = {
        int(name.removeprefix("nvidia-nccl-cu")): distribution.version
        for distribution in metadata.distributions()
        if re.fullmatch(r"nvidia-nccl-cu\d+", name := _name(distribution))
    }
    remedy = "Install torch and its nvidia packages afresh, as requirements-workloads.txt lists them."
    if others := sorted(set(installed) - {major}):
        raise PlaceError(f"NCCL for CUDA {others[0]} is installed over that for CUDA {major} of this torch", remedy)
    if installed and installed[major] != wanted:
        raise PlaceError(f"NCCL {installed[major]} is installed; this torch was built with {wanted}", remedy)


def _name(distribution: metadata.Distribution) -> str:
    # An interrupted installation leaves a folder without a name, which pip skips too.
    return (distribution.metadata["Name"] or "").lower().replace("_", "-")


def _requirement(package: str, pattern: re.Pattern[str]) -> re.Match[str] | None:
    return next(filter(None, map(pattern.match, metadata.requires(package) or [])), None)


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        raise PlaceError(f"{package} is not installed", MAKE_IMAGE) from None
