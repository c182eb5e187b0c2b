"""Plain `pulumi` in the shell that `python -m emulator env` makes: what it answers, and what it hands on."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from emulator import build, lifecycle
from emulator.engine.commands import Engine
from emulator.google.cloud import Cloud
from emulator.machine import processes
from emulator.machine.state import CHECKOUT, EmulatorError, State
from tests.emulator import programs
from tests.emulator.conftest import ControlPlane, shell
from tests.emulator.google import make_bucket
from tests.support.waiting import read_until

STACK_FILE = CHECKOUT / "Pulumi.local.yaml"


@pytest.fixture
def state(tmp_path: Path) -> State:
    """An emulator whose Pulumi says how it was called."""
    made = State(tmp_path / ".oasis")
    program = made.path("bin", "pulumi")
    program.write_text('#!/bin/sh\necho "v3.259.0: $*"\n')
    program.chmod(0o755)
    return made


def pulumi(state: State, command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["pulumi", *command.split()], env=shell(state), cwd=CHECKOUT, capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize(
    ("command", "instead"),
    [
        ("new", "  pulumi up"),
        ("--color=never watch", "  pulumi up"),
        ("config set --secret oasis:key x", "passphrase of its own; nothing was done. Type instead:\n  pulumi config"),
        ("stack rm local --yes", "-m emulator down"),
        ("logs -s local", "logs: it would change the stack file; nothing was done. Type instead:\n  ls .oasis/logs"),
        ("state unprotect --all --yes", "state unprotect: it would change what is known of the emulated cloud"),
        ("stack -s local change-secrets-provider passphrase", "-m emulator down"),
    ],
)
def test_what_would_write_a_stack_file_or_the_state_is_answered_with_what_to_type(
    state: State, command: str, instead: str
) -> None:
    before = STACK_FILE.read_bytes()

    done = pulumi(state, command)

    assert (done.returncode, done.stdout) == (2, "")
    assert instead in done.stderr
    assert len(done.stderr.splitlines()) == 3
    assert STACK_FILE.read_bytes() == before


@pytest.mark.thorough
@pytest.mark.parametrize(
    "command",
    [
        *("preview -s local", "-s local preview --diff", "--color=never update", "-v 3 refresh", "dn --stack local"),
        "--cwd . --non-interactive up --stack local --yes",
    ],
)
def test_what_runs_the_program_needs_the_emulator(state: State, command: str) -> None:
    done = pulumi(state, command)

    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("error: no emulator runs in this checkout; ")


@pytest.mark.parametrize(
    "command",
    [
        *("stack output --json --stack local", "stack", "-s up stack output config", "version", "whoami", ""),
        *("cancel -s local", "stack import --file x", "stack ls", "preview --help", "stack output preview"),
        *("config -s local", "config --config-file x --json", "-s local config get oasis:region"),
        *("config set oasis:region us-central1", "cfg rm oasis:region"),
    ],
)
def test_what_only_looks_is_handed_on_as_it_is(state: State, command: str) -> None:
    done = pulumi(state, command)

    assert (done.returncode, done.stdout) == (0, f"v3.259.0: {command}\n"), done.stderr


def test_an_interrupt_of_the_whole_process_group_reaches_pulumi_once(state: State, tmp_path: Path) -> None:
    state.path("bin", "pulumi").write_text(
        f"#!{sys.executable}\n"
        "import signal\n"
        "signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])\n"
        "print('ready', flush=True)\n"
        "print(signal.sigwaitinfo([signal.SIGINT]).si_pid, signal.sigtimedwait([signal.SIGINT], 1))\n"
    )
    (tmp_path / "Pulumi.local.yaml").touch()
    script = (
        "import sys; from pathlib import Path; from emulator.engine.commands import Engine, State\n"
        "here = Path(sys.argv[1]); Engine(State(here / '.oasis'), print, checkout=here).command_line(['up'])"
    )
    command = [sys.executable, "-c", script, str(tmp_path)]
    quiet, pipe = subprocess.DEVNULL, subprocess.PIPE
    with subprocess.Popen(command, stdin=quiet, stdout=pipe, text=True, start_new_session=True) as process:
        read_until(process, "ready")
        os.killpg(process.pid, signal.SIGINT)
        assert process.communicate()[0].split() == [str(process.pid), "None"]


def test_what_pulumi_started_ends_with_it_where_nobody_reads_its_output(
    state: State, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state.path("bin", "pulumi").write_text(
        f"#!{sys.executable}\n"
        "import os, signal, subprocess, time\n"
        "plugin = subprocess.Popen(['sleep', '300'])\n"
        f"open({str(tmp_path / 'plugin')!r}, 'w').write(str(plugin.pid))\n"
        "time.sleep(1)\n"
        "signal.signal(signal.SIGPIPE, signal.SIG_DFL)\n"
        "os.kill(os.getpid(), signal.SIGPIPE)\n"
    )
    (tmp_path / "Pulumi.local.yaml").touch()
    assert Engine(state, print, checkout=tmp_path).command_line(["preview"]) == 141
    assert processes.start_time(int((tmp_path / "plugin").read_text())) is None


def test_a_time_without_quotes_reaches_the_engine_as_it_was_written(
    state: State, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    state.path("bin", "pulumi").write_text('#!/bin/sh\ncat "$3"\n')
    lines = ["    start: 2026-12-01T00:00:00Z", "    end: '2027-01-01T00:00:00Z'", "    labels: 2026-12-01"]
    (tmp_path / "Pulumi.local.yaml").write_text("\n".join(["config:", "  oasis:cluster:", *lines, ""]))

    assert Engine(state, print, checkout=tmp_path).command_line(["preview"]) == 0
    assert capfd.readouterr().out.splitlines()[2:] == lines


def test_before_what_a_destroy_has_left_is_made_again_it_is_said_how_it_is_taken_back(
    state: State, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lifecycle, "CHECKOUT", tmp_path)
    file, cloud = tmp_path / "Pulumi.local.yaml", Cloud(state.directory)
    file.write_text("config:\n  oasis:name: oasis\n  oasis:runs: {keep: true}\n")
    assert lifecycle.forgotten(state) == ""
    make_bucket(cloud, "kept-runs")

    said = lifecycle.forgotten(state)
    assert "kept: kept-runs." in said and "without them it fails" in said and "adopt: true" in said
    file.write_text("config:\n  oasis:runs: {adopt: true}\n")
    assert lifecycle.forgotten(state) == ""
    file.write_text("config: {}\n")
    cloud.create("compute/network", "projects/p/global/networks/n", {}, ())
    assert lifecycle.forgotten(state) == ""  # a stack that stands


@pytest.mark.emulated
def test_it_previews_changes_refreshes_and_destroys_and_writes_no_tracked_file(
    bare_cluster: ControlPlane, tmp_path: Path
) -> None:
    checkout = tmp_path / "plain"
    program = """
        config = pulumi.Config()
        space = kubernetes.core.v1.Namespace("space", metadata={"name": "plain-space"}, opts=opts())
        print("a line of the program's own")
        pulumi.export("a", config.get("a") or "b")
        pulumi.export("b", pulumi.Output.secret("canary"))
    """
    programs.write(bare_cluster.state, checkout, program)
    file = checkout / "Pulumi.local.yaml"
    before = file.read_bytes()

    def said(command: str, status: int = 0) -> str:
        done = pulumi(bare_cluster.state, f"--cwd {checkout} {command}")
        assert done.returncode == status, done
        return f"{done.stdout}{done.stderr}"

    said("stack init local", 2)  # the emulator's `up` makes it
    programs.engine(bare_cluster.state, checkout, program).preview()
    assert "Namespace space create" in " ".join(said("preview").split())
    assert bare_cluster.api.get("v1", "Namespace", "plain-space") is None
    assert "a line of the program's own" in said("up --yes --skip-preview")
    assert bare_cluster.api.get("v1", "Namespace", "plain-space") is not None
    assert said("stack output a").strip() == "b"
    assert "canary" not in said("stack output")
    assert file.read_bytes() == before

    said("config set a c")
    assert yaml.safe_load(file.read_text()) == {"config": {f"{checkout.name}:a": "c"}}
    assert json.loads(said("config --json"))[f"{checkout.name}:a"]["value"] == "c"
    assert "no stack named 'other'" in said("stack output a --stack other", 6)
    assert "this shell is of the emulated cloud" in said("up --stack dev", 1)
    assert re.search(r"Resources:\n +\d unchanged\n", said("up --yes"))
    assert said("stack output a").strip() == "c"
    said("refresh --yes")
    said("destroy --yes")
    assert bare_cluster.api.get("v1", "Namespace", "plain-space") is None
    assert {path.name for path in checkout.iterdir()} == {"Pulumi.yaml", "Pulumi.local.yaml", "__main__.py"}


def test_python_in_that_shell_is_the_one_that_has_the_packages(state: State, monkeypatch: pytest.MonkeyPatch) -> None:
    path = lifecycle.environment(state)["PATH"]
    monkeypatch.setenv("PATH", path)

    assert shutil.which("python", path=path) == str(Path(sys.executable).with_name("python"))
    assert lifecycle.environment(state)["PATH"] == path, "the line typed once more"


def test_the_engine_and_the_next_up_find_the_program_itself(state: State, monkeypatch: pytest.MonkeyPatch) -> None:
    path = lifecycle.environment(state)["PATH"]
    engines = lifecycle.engine(state, print).environment()["PATH"]
    program = state.path("bin", "pulumi")

    monkeypatch.setenv("PATH", path)  # `up` in that shell
    monkeypatch.setattr(build, "PROGRAMS", [one for one in build.PROGRAMS if one.name == "pulumi"])
    monkeypatch.setattr(build, "is_downloaded", lambda *_: True)
    elsewhere = State(state.directory.parent / "another" / ".oasis")
    build.provide(elsewhere, print)

    assert engines.split(os.pathsep)[0] == str(program.parent)
    assert elsewhere.path("bin", "pulumi").readlink() == program


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ("encryptionsalt: v1:6x9=:v1:k\n", r"has encryptionsalt, .*Remove the line \(.*git checkout Pulumi\.local"),
        ("secretsprovider: passphrase\nencryptedkey: x\n", r"has encryptedkey and secretsprovider, .*the lines"),
        ("name: {\n", r"Pulumi\.local\.yaml is not valid YAML: while parsing"),
    ],
)
def test_a_foreign_encryption_or_a_broken_file_is_named_before_any_engine_starts(
    state: State, tmp_path: Path, lines: str, words: str
) -> None:
    file = tmp_path / "Pulumi.local.yaml"
    file.write_text(lines + STACK_FILE.read_text())
    (tmp_path / "Pulumi.yaml").write_text("name: oasis\n")

    with pytest.raises(EmulatorError, match=words):
        Engine(state, print, checkout=tmp_path).preview()

    assert not state.log("engine").exists()
