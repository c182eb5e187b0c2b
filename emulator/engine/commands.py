"""Runs the checkout's Pulumi program under the real engine, with the emulator's providers for the published ones.

The program does not notice: the engine finds the providers where it looks for plugins, and reads a copy of the stack's
config file that differs only in ports that must be free on this machine. The tracked file is never written.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import yaml

from emulator.machine import processes
from emulator.machine.loopback import past_proxies
from emulator.machine.state import CHECKOUT, EmulatorError, State, write_atomically

STACK = "local"

_PLUGINS = {
    "resource-gcp-v10.2.0": "emulator.gcp.provider",
    "resource-pulumi-python-v3.259.0": "pulumi.dynamic",
    "language-python-v3.259.0": "emulator.engine.language_host",
}
"""Plugins that the engine looks for, and the modules that stand for them here: one at the version of pulumi-gcp in the
lock file, two that come with the engine, at the engine's version."""

_KUBERNETES = f"resource-kubernetes-v{version('pulumi-kubernetes')}"
"""The published Kubernetes provider, built by the emulator, under the SDK's version, which the engine asks for."""

_ENCRYPTION = ("encryptionsalt", "encryptedkey", "secretsprovider")
"""Top-level keys of a stack file that say how its secrets are encrypted (Pulumi documentation, "Stack settings file
reference")."""

_TAKEN = (
    "What exists already was kept by an earlier destroy, or made by a run that was killed. What was kept comes back by "
    "`adopt: true` in its section of the stack file (oasis:data, runs, registry, wandb) for one `up`. "
    'What a killed run made, `make up STACK=local` takes over: eval "$(.venv/bin/python -m emulator env)" first.'
)

_NOT_KEPT = (
    "`adopt: true` asks for what an earlier destroy kept, and there is none of it here: `make down` has forgotten it, "
    "or nothing was destroyed yet. Take it out of the sections oasis:data, runs, registry and wandb of the stack file; "
    "what is in the buckets is there all the same."
)

_HINTS = {"Error 409": _TAKEN, "' does not exist": _NOT_KEPT}
"""What to do about an error, by Pulumi's or Google's words in it."""


class _Timestamp(str):
    """A time as written, without quotes, so that Pulumi reads it from the copy in the same way."""


class _Loader(yaml.SafeLoader):
    """Reads a stack file for a copy of it."""

    def as_written(self, node: yaml.ScalarNode) -> _Timestamp:
        """A time."""
        return _Timestamp(node.value)


class _Dumper(yaml.SafeDumper):
    """Writes the copy."""


_TIMESTAMP = "tag:yaml.org,2002:timestamp"
_Loader.add_constructor(_TIMESTAMP, _Loader.as_written)
_Dumper.add_representer(_Timestamp, lambda dumper, text: dumper.represent_scalar(_TIMESTAMP, str(text)))

_CANCEL_SECONDS = 10.0
_LOOK_SECONDS = 1.0
_HEAR_SECONDS = 0.2
_PLUGINS_SECONDS = 5.0  # for language host and providers to end, before they are killed


@dataclass(frozen=True, kw_only=True)
class Result:
    """The outcome of one run of the engine."""

    changes: Mapping[str, int]
    """Numbers of resources by what happened to them: `create`, `same`, `update`, `delete`, `replace`, ..."""
    outputs: Mapping[str, Any]
    """The stack's exports, secrets in the clear; empty after a preview or destroy."""
    seconds: float
    """Wall time, including the engine's own start."""


class Engine:
    """One stack of a checkout's program on its emulator."""

    def __init__(
        self,
        state: State,
        report: Callable[[str], None],
        *,
        checkout: Path = CHECKOUT,
        stack: str = STACK,
        overlay: Mapping[str, Any] | None = None,
        environment: Mapping[str, str] | None = None,
        types: Iterable[str] = (),
        published: Mapping[str, Path] | None = None,
        trouble: Callable[[], str] = str,
    ) -> None:
        """Prepare a run.

        Args:
            state: the emulator's folder, with `pulumi` in its `bin`.
            report: told one line per finished resource.
            checkout: where `__main__.py`, Pulumi.yaml and the stack file are.
            stack: which stack file to read.
            overlay: config that wins over the file's, by key (`oasis:ray`), objects merged key by key.
            environment: further variables for the engine and its providers: where the emulated Google answers.
            published: folders of plugins that are used in place of the emulator's own, by name.
            types: Google's resource types whose part of the SDK is imported while the engine starts.
            trouble: asked every second what would keep the run from ever ending; an answer cancels the run.
        """
        self._state, self._report = state, report
        self._checkout, self._stack = checkout, stack
        self._overlay, self._environment = overlay or {}, environment or {}
        self._types, self._trouble, self._published = list(types), trouble, published or {}

    def up(self, *, refresh: bool = False) -> Result:
        """Create or update everything. Raises EmulatorError with every resource that failed."""
        return self._run("up", refresh=refresh)

    def preview(self) -> Result:
        """Show what `up` would do."""
        return self._run("preview")

    def refresh(self) -> Result:
        """Read every resource's real state into the stack's state."""
        return self._run("refresh")

    def destroy(self) -> Result:
        """Delete everything that is not kept."""
        return self._run("destroy")

    def command_line(self, given: Sequence[str]) -> int:
        """Run Pulumi's own command line in this terminal, on the engine's copy of the stack file.

        Args:
            given: a command that runs the program or changes resources, with its options.

        Returns:
            Its exit status. It gets an interrupt only once, as a second one makes it leave its state as it is: Ctrl-C
            from the terminal that it reads, any other from this process. What it started ends with it, even if a
            signal ended it, as in `pulumi preview | head`.
        """
        self._prepare()
        program = self._state.path("bin", "pulumi")
        words = [*given, "--config-file", str(self._folder("project") / f"Pulumi.{self._stack}.yaml")]
        at_terminal = os.isatty(0)  # only its foreground process group may read there
        group = None if at_terminal else 0
        child = subprocess.Popen([program, *words], env=self._variables(), process_group=group)
        started: dict[int, int | None] = {}
        signals = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}
        signal.pthread_sigmask(signal.SIG_BLOCK, signals)
        try:
            while child.poll() is None:
                started |= {pid: processes.start_time(pid) for pid in processes.descendants(child.pid)}
                heard = signal.sigtimedwait(signals, _HEAR_SECONDS)
                if heard and (heard.si_pid or not at_terminal):  # the kernel sends a terminal's interrupt to both
                    child.send_signal(signal.SIGINT)
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, signals)
        if child.returncode >= 0:
            return child.returncode
        processes.end((pid for pid, at in started.items() if processes.start_time(pid) == at), _PLUGINS_SECONDS)
        return 128 - child.returncode  # as shells report it

    def outputs(self) -> dict[str, Any]:
        """The stack's exports, secrets in the clear; empty if there is no stack."""
        words = ["stack", "output", "--json", "--show-secrets", "--stack", self._stack]
        program, folder = self._state.path("bin", "pulumi"), self._folder("project")
        done = subprocess.run([program, *words], cwd=folder, env=self._variables(), capture_output=True, check=False)
        return json.loads(done.stdout) if done.returncode == 0 else {}

    def environment(self) -> dict[str, str]:
        """Variables under which a `pulumi` started by hand works on this stack."""
        return {
            "PULUMI_HOME": str(self._folder("home")),
            "PULUMI_BACKEND_URL": self._backend(),
            "PULUMI_STACK": self._stack,
            "PULUMI_CONFIG_PASSPHRASE_FILE": str(self._passphrase_file()),
            "PULUMI_SKIP_UPDATE_CHECK": "true",
            "PULUMI_DISABLE_AUTOMATIC_PLUGIN_ACQUISITION": "true",
            "PULUMI_IGNORE_AMBIENT_PLUGINS": "true",
            # For Helm inside the Kubernetes provider: its record of repositories is not the user's.
            **{f"HELM_{kind}_HOME": str(self._folder(f"helm-{kind.lower()}")) for kind in ("CACHE", "CONFIG", "DATA")},
            "PATH": first_on_path(os.environ.get("PATH", ""), self._state.path("bin"), Path(sys.executable).parent),
            **past_proxies(),
            **self._environment,
        }

    def _run(self, verb: str, *, refresh: bool = False) -> Result:
        self._prepare()
        begun = time.monotonic()
        request = {
            "verb": verb,
            "refresh": refresh,
            "stack": self._stack,
            "project": self._project(),
            "checkout": str(self._checkout),
            "work_dir": str(self._folder("project")),
            "types": self._types,
        }
        self._report(f"pulumi {verb} of stack {self._stack}; what stays the same has no line")
        answer = self._ask(request)
        if "error" in answer:
            hints = [hint for words, hint in _HINTS.items() if words in answer["error"]]
            raise EmulatorError(
                "\n".join([f"pulumi {verb} of stack {self._stack} failed:", str(answer["error"]), *hints])
            )
        return Result(changes=answer["changes"], outputs=answer["outputs"], seconds=time.monotonic() - begun)

    def _variables(self) -> dict[str, str]:
        paths = dict.fromkeys([str(self._checkout), str(CHECKOUT)])
        environment = {
            **os.environ,
            **self.environment(),
            **self._state.environment(),
            "PYTHONPATH": os.pathsep.join(paths),
            "PYTHONUNBUFFERED": "1",
        }
        environment.pop("PULUMI_CONFIG_PASSPHRASE", None)  # the user's own would win over the emulator's file
        return environment

    def _ask(self, request: Mapping[str, object]) -> dict[str, Any]:
        log = self._state.log("engine")
        with log.open("ab") as errors:
            child = subprocess.Popen(
                [sys.executable, "-m", "emulator.engine.run", json.dumps(request)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors,
                env=self._variables(),
                start_new_session=True,
                text=True,
            )
        answer: dict[str, Any] = {"error": f"the engine's process ended without an answer; see the end of {log}"}
        try:
            with child, self._watched(child) as troubles:
                for line in child.stdout or ():
                    content = json.loads(line)
                    if "line" in content:
                        self._report(content["line"])
                    else:
                        answer = content
        except BaseException:
            _cancel(child)
            raise
        return {"error": troubles[0]} if troubles else answer

    @contextlib.contextmanager
    def _watched(self, child: subprocess.Popen[str]) -> Iterator[list[str]]:
        """Cancel the run as soon as there is trouble; the yielded list then holds the trouble."""
        found: list[str] = []
        over = threading.Event()

        def watch() -> None:
            before = False
            while not over.wait(_LOOK_SECONDS):
                now = self._trouble()
                if now and before:  # seen twice: not a process that is being stopped on purpose
                    found.append(now)
                    _cancel(child)
                    return
                before = bool(now)

        watcher = threading.Thread(target=watch, daemon=True)
        watcher.start()
        try:
            yield found
        finally:
            over.set()
            watcher.join()

    def _prepare(self) -> None:
        # The emulator's own lock ensures that no other engine runs here: any lock left is from a killed one.
        shutil.rmtree(self._folder("state") / ".pulumi" / "locks", ignore_errors=True)
        published = {_KUBERNETES: self._state.path("bin"), **self._published}
        for plugin in {**_PLUGINS, **published}:
            program = self._folder("home") / "plugins" / plugin / f"pulumi-{plugin.rpartition('-')[0]}"
            if plugin in published:  # the engine ignores a folder that is a link
                program.parent.mkdir(parents=True, exist_ok=True)
                program.unlink(missing_ok=True)
                program.symlink_to(published[plugin] / program.name)
                continue
            # The checkout first: dynamic resources use the program's own classes.
            _write_script(program, _PLUGINS[plugin], self._checkout, CHECKOUT)
        self._write_stack_file()

    def _write_stack_file(self) -> None:
        source = self._checkout / f"Pulumi.{self._stack}.yaml"
        target = self._folder("project") / source.name
        if not source.exists():
            raise EmulatorError(
                f"there is no {source}; the emulator runs a stack that has a config file beside Pulumi.yaml"
            )
        refuse_encryption(source)
        content = yaml.load(source.read_text(), Loader=_Loader) or {}
        content["config"] = merged(content.get("config") or {}, self._overlay)
        if target.exists():  # the engine's own addition to its copy
            before = yaml.safe_load(target.read_text()) or {}
            content |= {key: before[key] for key in ("encryptionsalt",) if key in before}
        write_atomically(target, yaml.dump(content, Dumper=_Dumper, sort_keys=False))

    def _project(self) -> str:
        return str(yaml.safe_load((self._checkout / "Pulumi.yaml").read_text())["name"])

    def _backend(self) -> str:
        # Without each file's sidecar, which a kill can leave empty: see oasis_stack/command_line/stale_lock.py.
        return f"file://{self._folder('state')}?metadata=skip"

    def _passphrase_file(self) -> Path:
        file = self._state.path("pulumi", "passphrase")
        if not file.exists():
            if any(self._folder("state").rglob(f"{self._stack}.json")):
                raise EmulatorError(
                    f"{file} is gone, and without it the secrets in the state of stack {self._stack} cannot be read. "
                    "Put it back, or give the emulated cloud up with `.venv/bin/python -m emulator down`."
                )
            write_atomically(file, secrets.token_urlsafe(24), mode=0o600)
        return file

    def _folder(self, name: str) -> Path:
        folder = self._state.path("pulumi", name)
        folder.mkdir(exist_ok=True)
        return folder


def refuse_encryption(stack_file: Path) -> None:
    """Raise EmulatorError for a stack file in which a plain `pulumi` wrote its encryption, or that is unreadable."""
    try:
        content = yaml.safe_load(stack_file.read_text()) or {}
    except (yaml.YAMLError, ValueError) as error:  # an invalid date is a ValueError
        raise EmulatorError(f"{stack_file.name} is not valid YAML: {error}") from None
    if found := [key for key in _ENCRYPTION if key in content]:
        name, lines = stack_file.name, "the line" if len(found) == 1 else "the lines"
        raise EmulatorError(
            f"stack {stack_file.suffixes[0][1:]}: {name} has {' and '.join(found)}, which a plain `pulumi` wrote. The "
            "emulator encrypts with a passphrase of its own, and nothing can be read with both. Nothing was started or "
            f"changed. Remove {lines} (`git checkout {name}`, if nothing else in the file is yours), with every "
            "value `secure:` that was encrypted so, and run this again."
        )


def _cancel(child: subprocess.Popen[str]) -> None:
    """Cancel like Ctrl-C: let the engine finish its current work and write its state, then end whatever is left."""
    for pid in processes.in_session(child.pid):
        if processes.command_name(pid) == "pulumi":
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGINT)
    with contextlib.suppress(subprocess.TimeoutExpired):
        child.wait(timeout=_CANCEL_SECONDS)
    processes.end(processes.in_session(child.pid), grace_seconds=2.0)
    child.wait()


def first_on_path(path: str, *folders: Path) -> str:
    """A PATH with these folders first, each entry once."""
    return os.pathsep.join(dict.fromkeys([*map(str, folders), *path.split(os.pathsep)]))


def merged(config: Mapping[str, Any], overlay: Mapping[str, Any]) -> dict[str, Any]:
    """`config` overridden by `overlay`; objects are merged key by key."""
    result = dict(config)
    for key, value in overlay.items():
        below = result.get(key)
        result[key] = merged(below, value) if isinstance(below, Mapping) and isinstance(value, Mapping) else value
    return result


def _write_script(file: Path, module: str, *paths: Path) -> None:
    path = shlex.quote(os.pathsep.join(dict.fromkeys(map(str, paths))))
    script = f'#!/bin/sh\nPYTHONPATH={path} exec {shlex.quote(sys.executable)} -u -X faulthandler -m {module} "$@"\n'
    write_atomically(file, script, mode=0o755)
