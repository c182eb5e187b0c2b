"""`python -m workloads doctor`: is this place, a laptop, a head or a GPU worker, fit for the workloads?

Each check is a function that returns what it found or raises `Unfit`; one that does not apply here says so instead of
passing.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import secrets
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from importlib import import_module, metadata
from pathlib import Path
from typing import Literal

from workloads import listeners
from workloads.environment import GIB_DIRECTORY, ClusterEnvironment, variable
from workloads.errors import EXIT_OK, PlaceError, WorkloadError

RAY_SERIES = "2.60"
"""Ray releases that the workloads are tested with; a driver needs its cluster's own."""

PYTHON_SERIES = ("3.11", "3.12")

_LEAST_SHM_BYTES = {True: 16 * 1024**3, False: 64 * 1024**2}
"""/dev/shm by whether this is a GPU node: NCCL, data loaders and Ray's object store share it."""

MAKE_IMAGE = "Run `make image STACK=...` and `pulumi up`; on a laptop, install what requirements-workloads.txt lists."


class Unfit(Exception):
    """A check failed."""

    def __init__(self, found: str, remedy: str) -> None:
        super().__init__(found, remedy)
        self.found = found
        self.remedy = remedy


class NotHere(Exception):
    """A check does not apply to this place; says why."""


@dataclass(frozen=True, kw_only=True)
class Finding:
    """The outcome of one check."""

    check: str
    outcome: Literal["ok", "failed", "not here"]
    found: str
    remedy: str


@dataclass(frozen=True, kw_only=True)
class Place:
    """What the checks look at."""

    environment: ClusterEnvironment | None
    """What the stack promises; None outside a stack's cluster."""
    variables: Mapping[str, str]
    """Environment variables."""
    gpus: int
    """GPUs that this process sees."""


def add_doctor_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `python -m workloads doctor`."""
    parser.add_argument("--json", action="store_true", help="one JSON object per check")


def run_doctor(args: argparse.Namespace) -> int:
    """Run all checks, print what they found; returns 8 if one failed."""
    findings = examine(_this_place())
    for finding in findings:
        print(json.dumps(asdict(finding), sort_keys=True) if args.json else _line(finding))
    failed = sum(finding.outcome == "failed" for finding in findings)
    if failed and not args.json:
        print(f"\n{failed} of {len(findings)} checks failed", file=sys.stderr)
    return PlaceError.exit_code if failed else EXIT_OK


def examine(place: Place) -> list[Finding]:
    """All checks, in order."""
    return [_finding(name, check, place) for name, check in CHECKS.items()]


def _finding(name: str, check: Callable[[Place], str], place: Place) -> Finding:
    try:
        return Finding(check=name, outcome="ok", found=check(place), remedy="")
    except NotHere as reason:
        return Finding(check=name, outcome="not here", found=str(reason), remedy="")
    except Unfit as problem:
        return Finding(check=name, outcome="failed", found=problem.found, remedy=problem.remedy)
    except WorkloadError as problem:
        return Finding(check=name, outcome="failed", found=problem.problem, remedy=problem.remedy)


def _this_place() -> Place:
    environment = ClusterEnvironment.from_env() if variable("project") in os.environ else None
    return Place(environment=environment, variables=dict(os.environ), gpus=_visible_gpus())


def _visible_gpus() -> int:
    # The driver's own list of devices, so that a node with a driver torch cannot use still counts as a GPU node.
    return len(list(Path("/proc/driver/nvidia/gpus").glob("*"))) if Path("/proc/driver/nvidia/gpus").is_dir() else 0


def _python(place: Place) -> str:
    series = ".".join(platform.python_version_tuple()[:2])
    if series not in PYTHON_SERIES:
        raise Unfit(f"Python {platform.python_version()}", f"Use Python {' or '.join(PYTHON_SERIES)}.")
    return platform.python_version()


def _ray(place: Place) -> str:
    version = _version("ray")
    if not version.startswith(f"{RAY_SERIES}."):
        raise Unfit(f"Ray {version}", f"Install Ray {RAY_SERIES}, the cluster's own series.")
    return version


def _torch(place: Place) -> str:
    versions = {name: _version(name) for name in ("torch", "torchvision")}
    found = ", ".join(f"{name} {version}" for name, version in versions.items())
    try:
        for name in versions:
            import_module(name)
    except (ImportError, RuntimeError, OSError) as error:
        # A torchvision made for another torch fails so: "operator torchvision::nms does not exist".
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise Unfit(
            f"{found} do not load together: {reason}", "Install the pair of requirements-workloads.txt."
        ) from error
    return found


def _gpus(place: Place) -> str:
    if not place.gpus:
        raise NotHere("no GPU on this node")
    import torch

    promised = place.environment.gpus_per_node if place.environment else place.gpus
    usable = torch.cuda.device_count()
    if usable != promised:
        raise Unfit(f"torch can use {usable} of {promised} GPUs", "Compare `nvidia-smi` with the image's CUDA version.")
    return f"{usable} x {torch.cuda.get_device_name()}, CUDA {torch.version.cuda}"


def _gib(place: Place) -> str:
    if place.environment is None or not place.environment.rdma_nics:
        raise NotHere("the stack promises no RDMA NICs")
    if not place.gpus:
        raise NotHere("no GPU on this node; gIB is on the GPU workers")
    directory = Path(GIB_DIRECTORY)
    missing = [
        pattern for pattern in ("lib64/libnccl-net*.so", "scripts/set_nccl_env.sh") if not list(directory.glob(pattern))
    ]
    if missing:
        raise Unfit(
            f"{directory} lacks {' and '.join(missing)}",
            "NCCL would fall back to TCP. Look at the pods of DaemonSet nccl-rdma-installer in kube-system.",
        )
    return f"gIB in {directory}"


def _authentication(place: Place) -> str:
    if not _in_cluster(place):
        raise NotHere("not in a Ray cluster; an embedded Ray makes a token of its own")
    mode = place.variables.get("RAY_AUTH_MODE", "")
    if mode != "token" or not (place.variables.get("RAY_AUTH_TOKEN") or place.variables.get("RAY_AUTH_TOKEN_PATH")):
        raise Unfit(
            f"RAY_AUTH_MODE is {mode!r}{'' if mode != 'token' else ', without a token'}",
            "Without a token anybody who reaches the dashboard runs code: deploy with spec.authOptions.mode token.",
        )
    return "token"


def _listeners(place: Place) -> str:
    if "KUBERNETES_SERVICE_HOST" in place.variables:
        raise NotHere("in a pod Ray listens on the pod's address; the NetworkPolicy says who reaches it")
    exposed = [text for text, loopback in listeners.of(listeners.ray_processes()) if not loopback]
    if exposed:
        raise Unfit(
            f"a Ray on this machine listens beyond loopback: {', '.join(exposed[:4])}",
            "End it, or start it with RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER=0.",
        )
    return "no Ray on this machine listens beyond loopback"


def _runs_bucket(place: Place) -> str:
    if place.environment is None:
        raise NotHere("no stack, so no bucket")
    from workloads.storage import locate

    folder = locate(f"{place.environment.runs_uri}/.doctor-{secrets.token_hex(6)}")
    folder.write("probe", b"ok")
    try:
        if folder.read("probe") != b"ok":
            raise Unfit(f"{place.environment.runs_uri} returned other bytes than were written", "Check the endpoint.")
    finally:
        folder.remove()
    return f"{place.environment.runs_uri}: written, read, deleted"


def _data_bucket(place: Place) -> str:
    if place.environment is None:
        raise NotHere("no stack, so no bucket")
    from workloads.storage import locate

    entries = locate(place.environment.data_uri).names()
    return f"{place.environment.data_uri}: readable, {len(entries)} entries"


def _shared_memory(place: Place) -> str:
    size = _size_of("/dev/shm")
    least = _LEAST_SHM_BYTES[place.gpus > 0]
    if size < least:
        raise Unfit(
            f"/dev/shm has {size / 1024**2:.0f} MiB, at least {least / 1024**2:.0f} are needed",
            "Mount a memory-backed emptyDir at /dev/shm, or start the container with a larger --shm-size.",
        )
    return f"{size / 1024**3:.1f} GiB"


def _size_of(path: str) -> int:
    try:
        found = os.statvfs(path)
    except FileNotFoundError:
        return 0
    return found.f_frsize * found.f_blocks


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        raise Unfit(f"{package} is not installed", MAKE_IMAGE) from None


def _in_cluster(place: Place) -> bool:
    return place.environment is not None or "RAY_ADDRESS" in place.variables


def _line(finding: Finding) -> str:
    sign = {"ok": "ok      ", "failed": "FAILED  ", "not here": "-       "}[finding.outcome]
    return f"{sign}{finding.check:<16}{finding.found}" + (f"\n{'':<24}{finding.remedy}" if finding.remedy else "")


CHECKS: dict[str, Callable[[Place], str]] = {
    "python": _python,
    "ray": _ray,
    "torch": _torch,
    "gpus": _gpus,
    "gib": _gib,
    "authentication": _authentication,
    "listeners": _listeners,
    "runs bucket": _runs_bucket,
    "data bucket": _data_bucket,
    "shared memory": _shared_memory,
}
"""What is checked, in this order."""
