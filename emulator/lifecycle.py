"""The emulator as a whole: bring it up, deploy on it, describe it, take it down. The command line and the demo use it.

A command that starts an emulator and does not finish, for example because of Ctrl-C, leaves nothing running.
"""

from __future__ import annotations

import argparse
import contextlib
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import yaml

from emulator import build
from emulator.engine import plain_pulumi, published_provider
from emulator.engine.commands import STACK, Engine, Result, first_on_path, merged, refuse_encryption
from emulator.gcp import tables as gcp_tables
from emulator.google.cloud import Cloud
from emulator.google.collection import last
from emulator.kubernetes import control_plane, kueue
from emulator.machine import processes
from emulator.machine.belongings import content
from emulator.machine.state import CHECKOUT, EmulatorError, State, write_atomically
from emulator.programs import free_space
from emulator.ray import deployed_ray, job_clusters
from emulator.ray import nodes as ray_nodes
from emulator.rest import cloud_server

Report = Callable[[str], None]

DASHBOARD_PORT = 8265
"""Ray's default; used if it is free and the stack file does not name another."""

EVAL = 'eval "$(.venv/bin/python -m emulator env)"'
"""The command that makes a shell use the emulator of its checkout."""

MEMORY_GB, DISK_GB = 3, 2
"""What a running emulator needs: memory for its control plane, three Ray nodes and a job's processes; disk for logs and
buckets."""


@contextlib.contextmanager
def started(state: State, report: Report, provider: str = "") -> Iterator[Engine]:
    """Start the emulator unless it runs; yields an engine for its stack. Needs the lock.

    What this call started is ended again if the body does not finish.

    Args:
        state: the emulator's folder.
        report: told what is done.
        provider: `google` for Google's published provider, `emulator` for the emulator's own; empty for the one in use,
            or else the emulator's own.

    Raises:
        EmulatorError: for example, the program refuses the stack file; then nothing is built or started.
    """
    check_settings()
    fresh = not control_plane.is_running(state)
    if not fresh and not state.path("bin", build.KUBERNETES_PROVIDER).exists():
        raise EmulatorError("the emulated cloud that runs was started by an older version: `make down` ends it")
    published = published_provider.chosen(state, provider, fresh=fresh)
    try:
        if fresh:
            take_down(state)  # what a killed emulator has left
            if published:
                published_provider.use(state, published)
            _prepare(state, report)
        report("starting the emulated cloud" if fresh else "the emulated cloud is running already")
        cloud_server.spawn(state)  # in parallel with the control plane, which it does not need
        control_plane.start(state, heads_wait=True)
        cloud_server.start(state)
        state.spawn_module("gke", "emulator.gke.controller")
        job_clusters.start(state)
        yield engine(state, report)
    except BaseException:
        if fresh:
            with _undisturbed():
                try:
                    report("ending everything")
                finally:  # the reader of the report may have left, as `head` does
                    take_down(state)
        raise


def _prepare(state: State, report: Report) -> None:
    """Report existing data, and build the emulator's programs if there is room to run them. Raises EmulatorError."""
    for bucket in sorted(state.path("buckets").glob("*")):
        if (found := content(bucket)).size:
            report(f"gs://{bucket.name} has what it held before: {found}")
    free_space.require(
        state.directory,
        "running the emulator",
        disk_gb=DISK_GB,
        memory_gb=MEMORY_GB,
        elsewhere="use a checkout on a larger disk",
    )
    report("preparing the emulator's programs")
    build.provide(state, report)


def check_settings() -> None:
    """Raise EmulatorError for every mistake in the stack file, in the program's own words, or for its encryption."""
    plan = [sys.executable, "-m", "oasis_stack", "plan", "--settings-only", "--stack", STACK]
    done = subprocess.run(plan, cwd=CHECKOUT, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if done.returncode:
        raise EmulatorError(f"stack {done.stderr.strip()}")
    refuse_encryption(CHECKOUT / f"Pulumi.{STACK}.yaml")


@contextlib.contextmanager
def _undisturbed() -> Iterator[None]:
    """Ignore signals, so that a second Ctrl-C does not leave half of the emulator running."""
    before = {name: signal.signal(name, signal.SIG_IGN) for name in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for name, handler in before.items():
            signal.signal(name, handler)


def deploy(state: State, running: Engine, report: Report, *, refresh: bool = False) -> Result:
    """Run `pulumi up` of the local stack, and start the standing Ray behind its RayCluster."""
    result = up(state, running, refresh=refresh)
    start_ray(state, report)
    return result


def up(state: State, running: Engine, *, refresh: bool = False) -> Result:
    """Run `pulumi up` of the local stack; `environment` uses the kubeconfig that it exports from then on."""
    result = running.up(refresh=refresh)
    write_atomically(kubeconfig_file(state), str(result.outputs["kubeconfig"]), mode=0o600)
    return result


def pulumi(state: State, verb: str, given: Sequence[str], report: Report) -> int:
    """Run Pulumi's own command, as a person gave it, then adapt Ray to the stack; returns the command's exit status.

    Args:
        state: folder of the emulator in whose shell it was typed.
        verb: the command's usual name: `preview`, `up`, `refresh` or `destroy`.
        given: all its words.
        report: told what is done besides.

    Raises:
        EmulatorError: the emulator does not run, or the command is about another stack.
    """
    require_running(state)
    options = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    options.add_argument("-C", "--cwd", type=Path, default=Path())
    options.add_argument("-s", "--stack", default=STACK)
    known, _ = options.parse_known_args(given)
    if known.stack.rpartition("/")[2] != STACK:
        raise EmulatorError(
            f"this shell is of the emulated cloud, whose stack is {STACK!r}: it cannot {verb} {known.stack!r}. For a "
            "stack on Google Cloud use a shell without the emulator's `env`."
        )
    here = known.cwd.absolute()
    project = next((folder for folder in (here, *here.parents) if (folder / "Pulumi.yaml").exists()), CHECKOUT)
    if verb in ("up", "preview") and project == CHECKOUT:
        check_settings()
        if text := forgotten(state):
            report(text)
    running = engine(state, report, checkout=project)
    status = running.command_line(given)
    if status:
        return status
    if verb == "destroy":
        ray_nodes.stop(state)
        if text := kept(state):
            report(text)
    if verb == "up" and "kubeconfig" in (outputs := running.outputs()):
        write_atomically(kubeconfig_file(state), str(outputs["kubeconfig"]), mode=0o600)
        start_ray(state, report)
    return 0


def start_ray(state: State, report: Report) -> None:
    """Start the standing Ray behind the deployed RayCluster, unless it runs."""
    deployed = deployed_ray.find(control_plane.kubeconfig_file(state))
    url = deployed.environment["ray_dashboard_url"]
    if urlsplit(url).hostname != "127.0.0.1":
        report(
            f"the stack's Ray is not started: its dashboard is at {url} (oasis:ray.dashboard_access), an address that "
            "the emulated cloud does not have. To run jobs here, set that to port-forward."
        )
        return
    ray_nodes.start(state, deployed, environment(state), report)


def destroy(state: State, running: Engine, report: Report) -> Result:
    """Run `pulumi destroy` of the local stack; its Ray ends first, like the pods of a deleted RayCluster."""
    ray_nodes.stop(state)
    return running.destroy()


def kept(state: State) -> str:
    """What a destroy has left, and how the next `up` takes it back; empty if it left nothing."""
    found = [one for one in Cloud(state.directory).inventory().kept if one.kind in _KEPT]
    names = ", ".join(last(one.name) for one in found)
    back = f"The next `up` takes them back with the lines at the end of Pulumi.{STACK}.yaml (`adopt: true`)"
    return names and f"kept: {names}. {back}"


def forgotten(state: State) -> str:
    """What a destroy has left, if the stack file does not say that the next `up` takes it back; else empty."""
    inventory = Cloud(state.directory).inventory()
    sections = (section for section in _stack_config().values() if isinstance(section, dict))
    if inventory.other or any(section.get("adopt") for section in sections):
        return ""
    text = kept(state)
    return text and f"{text}; without them it fails, as they exist already"


_KEPT = ("artifactregistry/repository", "storage/bucket")


def take_down(state: State) -> list[str]:
    """End every process and delete the emulated cloud, but not what people have made. Returns the names of what ran."""
    names = [process.name for process in state.processes()]
    names += [f"the running job `{command}`" for command in ray_nodes.running_jobs(state)]
    names += [f"the Ray of {running.directory.name}" for running in job_clusters.folders(state) if running.processes()]
    job_clusters.end_all(state)
    ray_nodes.stop(state)
    state.stop_all()
    state.clear()
    return names


def engine(state: State, report: Report, overlay: Mapping[str, Any] | None = None, checkout: Path = CHECKOUT) -> Engine:
    """The engine for the local stack of a checkout; `overlay` wins over the stack file."""
    # Tests and benchmarks use other folders, and leave the stack file's port to people.
    wanted = _wanted_port() if state.directory == CHECKOUT / ".oasis" else None
    charts = cloud_server.charts_address(state)
    ports: dict[str, dict[str, Any]] = {
        "oasis:ray": {
            "dashboard_port": state.port("ray-dashboard", preferred=wanted),
            "operator_repository": charts,
        },
    }
    if _stack_config().get("oasis:gpu"):  # adding a section that the stack lacks would request GPUs
        ports["oasis:gpu"] = {"queue_chart": charts + kueue.archive()}
    provider, plugins = published_provider.used(state, f"http://127.0.0.1:{state.port(cloud_server.NAME)}")
    return Engine(
        state,
        report,
        checkout=checkout,
        overlay=merged({**ports, **provider}, overlay or {}),
        environment=cloud_server.environment(state),
        published=plugins,
        types=gcp_tables.ROWS,
        trouble=lambda: trouble(state),
    )


def trouble(state: State) -> str:
    """Name and last output of a standing process that ended by itself; empty while all run. Ray's are restarted."""
    ended = [name for name in state.ended() if name not in ray_nodes.NODES]
    if not ended:
        return ""
    log = state.log(ended[0])
    return (
        f"{ended[0]}, a part of the emulated cloud, ended by itself. `.venv/bin/python -m emulator up` starts it "
        f"again; its log is {log} and ends with:\n  {processes.last_words(log)}"
    )


def environment(state: State) -> dict[str, str]:
    """Variables under which kubectl, pulumi, gcloud's auth plugin and Google's client libraries use this emulator."""
    kubeconfig = kubeconfig_file(state)
    engines = engine(state, lambda _line: None).environment()
    return {
        **engines,
        "PATH": first_on_path(engines["PATH"], _plain_pulumi(state)),
        "KUBECONFIG": str(kubeconfig if kubeconfig.exists() else control_plane.kubeconfig_file(state)),
    }


def _plain_pulumi(state: State) -> Path:
    """Rewrite the `pulumi` for people, and return its folder; the engine's own calls find the program itself."""
    words = [sys.executable, "-I", "-S", plain_pulumi.__file__, str(state.path("bin", "pulumi"))]
    script = state.path(plain_pulumi.FOLDER, "pulumi")
    write_atomically(script, f'#!/bin/sh\nexec {shlex.join(words)} "$@"\n', mode=0o755)
    return script.parent


def kubeconfig_file(state: State) -> Path:
    """The kubeconfig that the stack exports, once it is deployed."""
    return state.path("kubeconfig")


def dashboard(outputs: Mapping[str, Any]) -> str:
    """URL of Ray's dashboard, with the reason if its port is not the stack file's."""
    url, wanted = str(outputs["ray_dashboard_url"]), _wanted_port()
    return url if url.endswith(f":{wanted}") else f"{url} (port {wanted} was taken)"


def is_of_earlier(shell: Mapping[str, str], state: State) -> bool:
    """Whether a shell's variables lead to a different emulated cloud than the running one."""
    now = cloud_server.environment(state)
    return any(shell.get(name, now[name]) != now[name] for name in cloud_server.ADDRESSES)


def require_running(state: State) -> None:
    """Raise EmulatorError unless the emulator runs."""
    if not control_plane.is_running(state):
        raise EmulatorError(
            "no emulator runs in this checkout; `.venv/bin/python -m emulator up` or `make demo` starts it"
        )


def _wanted_port() -> int:
    return int((_stack_config().get("oasis:ray") or {}).get("dashboard_port", DASHBOARD_PORT))


def _stack_config() -> Mapping[str, Any]:
    stack: Mapping[str, Any] = yaml.safe_load((CHECKOUT / f"Pulumi.{STACK}.yaml").read_text()) or {}
    return stack.get("config") or {}
