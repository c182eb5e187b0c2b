"""Building the Go programs: checked first, once for all, complete or not at all. No compiler runs for long here."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest

from emulator import __main__ as command_line
from emulator import build
from emulator.build import PROGRAMS, Program
from emulator.kubernetes import crds
from emulator.machine.state import CHECKOUT, EmulatorError, State
from emulator.programs import free_space, go_modules

ETCD = PROGRAMS[0]


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache of the user's, with Go's own caches behind it."""
    real = go_modules.cache_directory()
    folder = tmp_path / "cache" / "oasis"
    folder.mkdir(parents=True)
    (real / "go").mkdir(parents=True, exist_ok=True)
    (folder / "go").symlink_to(real / "go")
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder.parent))
    return folder


def _with_room(monkeypatch: pytest.MonkeyPatch, disk_gb: int = 64, memory_gb: int = 64) -> None:
    """Have so much free, whatever the machine of the tests has."""
    monkeypatch.setattr(shutil, "disk_usage", lambda _path: SimpleNamespace(free=disk_gb << 30))
    monkeypatch.setattr(free_space, "free_memory", lambda: memory_gb << 30)


def test_a_program_is_known_by_its_pins_package_and_flags_and_by_nothing_of_the_checkout() -> None:
    others = [
        dataclasses.replace(ETCD, package="go.etcd.io/etcd/etcdctl/v3"),
        dataclasses.replace(ETCD, tool="kuberay"),
        dataclasses.replace(ETCD, ldflags="-s"),
        dataclasses.replace(ETCD, tags="netgo"),
    ]

    assert ETCD.key() == dataclasses.replace(ETCD).key()
    assert len({program.key() for program in (ETCD, *others)}) == 5


def test_every_program_is_pinned_by_its_own_module() -> None:
    for program in PROGRAMS:
        pins = (go_modules.TOOLS / program.tool / "go.mod").read_text()
        assert program.package in pins, f"no tool line for {program.package}"
        assert (go_modules.TOOLS / program.tool / "go.sum").stat().st_size > 0
    assert f"k8s.io/kubernetes v{build.KUBERNETES_VERSION}" in (go_modules.TOOLS / "kubernetes" / "go.mod").read_text()
    pulumi = (go_modules.TOOLS / "pulumi" / "go.mod").read_text()
    assert f"github.com/pulumi/pulumi/pkg/v3 v{build.PULUMI_VERSION}" in pulumi
    assert f'requiredPulumiVersion: ">={build.PULUMI_VERSION}"' in (CHECKOUT / "Pulumi.yaml").read_text()


@pytest.mark.parametrize(
    ("disk_gb", "memory_gb", "words"),
    [(11, 64, r"11\.0 GB are free.*up to 12 GB.*XDG_CACHE_HOME"), (64, 5, r"5\.0 GB of memory.*up to 6 GB")],
)
def test_too_little_room_is_said_before_anything_is_built(
    cache: Path, state: State, monkeypatch: pytest.MonkeyPatch, disk_gb: int, memory_gb: int, words: str
) -> None:
    _with_room(monkeypatch, disk_gb, memory_gb)
    monkeypatch.setenv("PATH", "/usr/bin:/bin")

    with pytest.raises(EmulatorError, match=words):
        build.provide(state, print)

    assert not (cache / "bin").exists()
    assert not state.path("bin").exists()


def test_packages_alone_are_installed_where_free_memory_is_not_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a Mac, from which jobs are submitted, too."""

    def unknown() -> int:
        raise FileNotFoundError("/proc/meminfo")

    _with_room(monkeypatch)
    monkeypatch.setattr(free_space, "free_memory", unknown)

    assert free_space.main(["packages"]) is None


def test_a_build_that_fails_is_reported_in_the_compilers_words_and_leaves_nothing(
    cache: Path, state: State, monkeypatch: pytest.MonkeyPatch
) -> None:
    _with_room(monkeypatch)
    monkeypatch.setattr(
        build, "PROGRAMS", (Program("nothing", "kubernetes", "go.etcd.io/etcd/server/v3/no/such/package"),)
    )

    with pytest.raises(EmulatorError, match=r"(?s)building nothing failed.*no/such/package"):
        build.provide(state, print)

    assert list((cache / "bin").iterdir()) == []


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("version", "used"),
    [("v3.259.0", True), ("v3.300.1", True), ("v3.258.9", False), ("v4.0.0", False), ("", False)],
)
def test_an_installed_pulumi_is_used_if_it_is_new_enough(
    cache: Path, state: State, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str, used: bool
) -> None:
    installed = tmp_path / "installed" / "pulumi"
    installed.parent.mkdir()
    installed.write_text(f"#!/bin/sh\necho {version}\n")
    installed.chmod(0o755)
    ours = next(program for program in PROGRAMS if program.name == "pulumi")
    ours.built().parent.mkdir(parents=True)
    ours.built().touch()
    monkeypatch.setenv("PATH", f"{installed.parent}:/usr/bin:/bin")
    monkeypatch.setattr(build, "PROGRAMS", (ours,))

    build.provide(state, print)

    link = state.path("bin", "pulumi")
    assert link.readlink() == (installed if used else ours.built())
    monkeypatch.setenv("PATH", f"{link.parent}:/usr/bin:/bin")
    build.provide(state, print)
    assert link.readlink() != link, "the emulator's own link, first on PATH, is not an installed pulumi"


def test_they_can_be_built_before_anything_is_started(
    cache: Path, state: State, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(build, "PROGRAMS", (ETCD,))
    monkeypatch.setattr(State, "of_checkout", lambda: state)
    ETCD.built().parent.mkdir(parents=True)
    ETCD.built().touch()

    assert command_line.main(["build"]) == 0

    assert state.path("bin", "etcd").readlink() == ETCD.built()
    assert str(cache / "bin") in capsys.readouterr().out
    assert state.processes() == []


def test_modules_that_are_read_at_run_time_are_fetched_with_the_programs_and_said_so(
    state: State, monkeypatch: pytest.MonkeyPatch
) -> None:
    fetched: list[tuple[str, str]] = []
    lines: list[str] = []
    monkeypatch.setattr(build, "PROGRAMS", ())
    monkeypatch.setattr(build, "is_downloaded", lambda _tool, module: module not in {crds.KUEUE[1], crds.AUTOSCALER[1]})
    monkeypatch.setattr(build, "module_directory", lambda *module: fetched.append(module))

    build.provide(state, lines.append)

    assert fetched == [crds.KUEUE, crds.AUTOSCALER]
    assert lines == [f"downloading the Go module {module}" for _, module in fetched]
