"""The Go programs of the emulator: built once per user from pinned modules, and stored under a hash of their inputs.

A finished program appears by one rename, so an interrupted build leaves nothing but Go's own cache, from which it
resumes.
"""

from __future__ import annotations

import fcntl
import functools
import hashlib
import os
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from emulator.engine.plain_pulumi import FOLDER
from emulator.kubernetes import crds
from emulator.kubernetes.control_plane import STAGES_MODULE
from emulator.machine import processes
from emulator.machine.state import EmulatorError, State
from emulator.programs import free_space
from emulator.programs.go_modules import (
    TOOLS,
    cache_directory,
    go_environment,
    go_program,
    is_downloaded,
    module_directory,
)

Report = Callable[[str], None]

PULUMI_VERSION = "3.259.0"
"""Engine that `tools/pulumi/go.mod` pins; a `pulumi` on PATH is used instead if it is this version or a later 3.x."""

KUBERNETES_VERSION = "1.36.3"
"""Version in `tools/kubernetes/go.mod`; a build outside Kubernetes' own scripts cannot find it out by itself."""

KUBERNETES_PROVIDER = "pulumi-resource-kubernetes"
"""The engine's name for the program of Pulumi's Kubernetes provider."""

_STRIP = "-s -w"
_KUBERNETES = (
    f"{_STRIP} -X k8s.io/component-base/version.gitVersion=v{KUBERNETES_VERSION}"
    " -X k8s.io/component-base/version.gitMajor=1 -X k8s.io/component-base/version.gitMinor=36"
    f" -X k8s.io/client-go/pkg/version.gitVersion=v{KUBERNETES_VERSION}"
)
_PULUMI_KUBERNETES = (
    f"{_STRIP} -X github.com/pulumi/pulumi-kubernetes/provider/v4/pkg/version.Version={version('pulumi-kubernetes')}"
)
"""The engine warns about a provider that reports an older version than the SDK's. The source is from January 2026,
between 4.24 and 4.26: the newest that is published as a Go module."""

_PULUMI = f"{_STRIP} -X github.com/pulumi/pulumi/sdk/v3/go/common/version.Version=v{PULUMI_VERSION}"


@dataclass(frozen=True)
class Program:
    """One Go command and how it is built."""

    name: str
    tool: str
    """Folder below `tools/` whose go.mod and go.sum pin it; programs of one folder share what Go compiles for them."""
    package: str
    ldflags: str = _STRIP
    tags: str = ""

    def flags(self) -> list[str]:
        tags = ["-tags", self.tags] if self.tags else []
        # Not compiling what the linker strips anyway saves an eighth of the time.
        return ["-buildvcs=false", "-trimpath", "-gcflags=all=-dwarf=false", *tags, "-ldflags", self.ldflags]

    def key(self) -> str:
        """Hash of the pins, the flags and the compiler."""
        digest = hashlib.sha256()
        for file in sorted(path for path in (TOOLS / self.tool).rglob("*") if path.is_file()):
            digest.update(file.read_bytes())
        digest.update("\0".join([self.package, _go_version(), *self.flags()]).encode())
        return digest.hexdigest()[:20]

    def built(self) -> Path:
        """Path of the finished program, once it is there."""
        return cache_directory() / "bin" / self.key() / self.name


PROGRAMS = (
    Program("etcd", "kubernetes", "go.etcd.io/etcd/server/v3"),
    Program("kube-apiserver", "kubernetes", "k8s.io/kubernetes/cmd/kube-apiserver", _KUBERNETES),
    Program("kube-controller-manager", "kubernetes", "k8s.io/kubernetes/cmd/kube-controller-manager", _KUBERNETES),
    Program("kube-scheduler", "kubernetes", "k8s.io/kubernetes/cmd/kube-scheduler", _KUBERNETES),
    Program("kubectl", "kubernetes", "k8s.io/kubernetes/cmd/kubectl", _KUBERNETES),
    Program("kwok", "kubernetes", "sigs.k8s.io/kwok/cmd/kwok"),
    Program("kuberay-operator", "kuberay", "github.com/ray-project/kuberay/ray-operator"),
    Program("kueue", "kubernetes", "sigs.k8s.io/kueue/cmd/kueue"),
    Program(KUBERNETES_PROVIDER, "pulumi-kubernetes", "oasis/emulator/tools/pulumi-kubernetes", _PULUMI_KUBERNETES),
    Program("pulumi", "pulumi", "github.com/pulumi/pulumi/pkg/v3/cmd/pulumi", _PULUMI, "osusergo,grpcnotrace"),
)


def provide(state: State, report: Report) -> None:
    """Put every program into `.oasis/bin`, building those that this user has not built before, and download the modules
    that are read at run time.

    Raises:
        EmulatorError: too little disk or memory, or a failed build or download; nothing half-built is left.
    """
    found = {program.name: path for program in PROGRAMS if (path := _available(program)) is not None}
    missing = [program for program in PROGRAMS if program.name not in found]
    if missing:
        with _only_builder(report):
            found |= _build(state, missing, report)
    for name, path in found.items():
        link = state.path("bin", name)
        temporary = link.with_name(f".{name}.{os.getpid()}")
        temporary.symlink_to(path)
        temporary.replace(link)
    for tool, module in (*crds.MODULES, STAGES_MODULE):
        if not is_downloaded(tool, module):
            report(f"downloading the Go module {module}")
            module_directory(tool, module)


def _available(program: Program) -> Path | None:
    if program.name == "pulumi" and (path := _pulumi_on_path()) is not None:
        return path
    return program.built() if program.built().exists() else None


def _build(state: State, missing: Sequence[Program], report: Report) -> dict[str, Path]:
    missing = [program for program in missing if not program.built().exists()]  # another builder may have built them
    if missing:
        free_space.require(
            cache_directory(),
            "building the emulator's programs",
            disk_gb=free_space.PROGRAMS_GB,
            memory_gb=free_space.COMPILER_MEMORY_GB,
            elsewhere=free_space.ANOTHER_CACHE,
        )
        report(f"building {len(missing)} programs from Go modules, once per user (10 to 15 minutes on 2 cores)")
    for number, program in enumerate(missing, start=1):
        _build_one(state, program, f"[{number}/{len(missing)}] {program.name}", report)
    return {program.name: program.built() for program in PROGRAMS if program.built().exists()}


def _build_one(state: State, program: Program, label: str, report: Report) -> None:
    target = program.built().parent
    workplace = target.with_name(f".{target.name}.{os.getpid()}")
    log = state.log(f"build-{program.name}")
    log.unlink(missing_ok=True)
    parallel = max(1, min(os.cpu_count() or 1, free_space.free_memory() // (3 << 30)))
    command = [
        go_program(),
        "build",
        "-p",
        str(parallel),
        *program.flags(),
        "-o",
        workplace / program.name,
        program.package,
    ]
    environment = {**go_environment(), **state.environment()}
    begun = time.monotonic()
    report(f"{label}: building")
    try:
        workplace.mkdir(parents=True)
        status = processes.run(
            command, log, environment, TOOLS / program.tool, lambda seconds: report(f"{label}: {seconds:.0f} s"), 15
        )
        if status != 0:
            raise EmulatorError(f"building {program.name} failed ({log}):\n  {processes.last_words(log)}")
        workplace.rename(target)
    finally:
        shutil.rmtree(workplace, ignore_errors=True)
    report(f"{label}: built in {time.monotonic() - begun:.0f} s")


@contextmanager
def _only_builder(report: Report) -> Iterator[None]:
    cache = cache_directory()
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / "build.lock").open("a") as lock:
        waited = 0
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if waited % 15 == 0:
                    report(f"another checkout is building the same programs; waiting for it, {waited} s")
                waited += 1
                time.sleep(1)
        yield


@functools.cache
def _go_version() -> str:
    answer = subprocess.run([go_program(), "version"], env=go_environment(), capture_output=True, text=True, check=True)
    return answer.stdout.strip()


def _pulumi_on_path() -> Path | None:
    # Not the wrapper that the emulator puts before its own link in a person's shell.
    places = [part for part in os.environ.get("PATH", os.defpath).split(os.pathsep) if Path(part).name != FOLDER]
    found = shutil.which("pulumi", path=os.pathsep.join(places))
    if found is None:
        return None
    answer = subprocess.run([found, "version"], capture_output=True, text=True, check=False)
    version = re.match(r"v?(\d+)\.(\d+)\.(\d+)", answer.stdout.strip())
    if version is None:
        return None
    numbers, pinned = tuple(map(int, version.groups())), tuple(map(int, PULUMI_VERSION.split(".")))
    # Resolved, because after `eval "$(python -m emulator env)"` the first one found is our own link.
    return Path(found).resolve() if numbers[0] == pinned[0] and numbers >= pinned else None
