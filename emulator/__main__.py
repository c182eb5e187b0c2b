"""`python -m emulator`: the emulated cloud of this checkout, from the command line."""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import shlex
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType

from emulator import build, closed_pipe, demo, lifecycle
from emulator.engine.commands import Result
from emulator.kubernetes import control_plane
from emulator.machine.state import CHECKOUT, EmulatorError, State
from emulator.programs.go_modules import cache_directory

DESCRIPTION = """\
The whole platform on one machine: the real Pulumi engine and a real Kubernetes API server against an emulated Google
Cloud. Everything listens on 127.0.0.1, belongs to this checkout alone and is kept in its .oasis folder.
"""

EPILOG = """\
first time:       .venv/bin/python -m emulator up     (builds its programs once per user, 10 to 15 minutes on 2 cores)
look around:      eval "$(.venv/bin/python -m emulator env)"; kubectl get pods -A; pulumi stack output
change something: edit Pulumi.local.yaml, then .venv/bin/python -m emulator preview, .venv/bin/python -m emulator up
the end:          .venv/bin/python -m emulator down

exit status: 0 done; 1 failed or, for status, not running as a whole; 2 wrong usage; 130 interrupted
"""

_PLAIN = "pulumi"
"""Command that `pulumi` calls in the shell of `env`; nobody types it, so no list of commands shows it."""

_COLOURS = {"create": 32, "update": 33, "replace": 33, "delete": 31, "failed": 31}
_VERB = re.compile(rf"( s  )((?:would )?({'|'.join(_COLOURS)})\w*)")


def main(arguments: list[str] | None = None) -> int:
    """Run one command; returns the exit status."""
    words = sys.argv[1:] if arguments is None else arguments
    given, unknown = _parser(words[:1] == [_PLAIN]).parse_known_args(words)
    if unknown:
        given.refuse(f"unrecognized arguments: {' '.join(unknown)}")
    for name in (signal.SIGTERM, signal.SIGHUP):  # a closed terminal, a killed build: end as with Ctrl-C
        signal.signal(name, _interrupt)
    try:
        return given.run(State.of_checkout(), given)
    except EmulatorError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except BrokenPipeError:  # an OSError too
        raise
    except OSError as error:
        print(f"error: {_unusable(error)}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\ninterrupted", file=sys.stderr)
        return 130


def _unusable(error: OSError) -> str:
    place = f"{error.filename}: " if error.filename else ""
    return (
        f"{place}{error.strerror or error}. The emulator must be able to write, with room to spare, into .oasis in "
        f"{CHECKOUT}; into the folder for its programs, {cache_directory()}, which XDG_CACHE_HOME can move; and into "
        "the folder for temporary files, which TMPDIR can move."
    )


def _parser(plain: bool = False) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m emulator",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(required=True, metavar="command")

    def add(name: str, run: Callable[[State, argparse.Namespace], int], words: str) -> argparse.ArgumentParser:
        command = commands.add_parser(name, help=words, description=words)
        command.set_defaults(run=run, refuse=command.error)
        return command

    up = add("up", _up, "start the emulated cloud and deploy the stack `local` on it, or apply what changed")
    up.add_argument("--refresh", action="store_true", help="read every resource's real state first")
    show = add("demo", _demo, "up, then train and benchmark on it, with tables and plots")
    for command in (up, show):
        command.add_argument(
            "--provider",
            default="",
            metavar="NAME",
            help="google: Google's published provider, from your own Pulumi's plugins; else the emulator's own",
        )
    add("build", _build, "build the programs that the emulated cloud needs, once per user; `up` does so, too")
    add("preview", _preview, "show what `up` would do; the emulated cloud must run")
    add("refresh", _refresh, "read every resource's real state into the stack's; the emulated cloud must run")
    add("destroy", _destroy, "delete the stack's resources as `pulumi destroy` would; the emulated cloud stays")
    add("status", _status, "show what runs and where")
    exports = (
        'print shell exports for kubectl, pulumi and Google\'s clients: eval "$(.venv/bin/python -m emulator env)"'
    )
    add("env", _env, exports)
    if plain:
        hidden = commands.add_parser(_PLAIN)
        hidden.add_argument("directory", type=Path)
        hidden.add_argument("verb")
        hidden.add_argument("given", nargs=argparse.REMAINDER)
        hidden.set_defaults(run=_pulumi)
    add(
        "down",
        _down,
        "end everything and forget the emulated cloud; runs, data, results, logs and buckets stay",
    )
    return parser


def _up(state: State, given: argparse.Namespace) -> int:
    with state.lock("python -m emulator up"), lifecycle.started(state, _say, given.provider) as running:
        result = lifecycle.deploy(state, running, _say, refresh=given.refresh)
        _summary("up", result)
        _say(f"Ray's dashboard: {lifecycle.dashboard(result.outputs)}")
        _say(f"look around with: {lifecycle.EVAL}")
    return 0


def _build(state: State, given: argparse.Namespace) -> int:
    with state.lock("python -m emulator build"):
        build.provide(state, _say)
    _say(f"the programs are in {cache_directory() / 'bin'}")
    return 0


def _demo(state: State, given: argparse.Namespace) -> int:
    return demo.main(state, _say, given.provider)


def _preview(state: State, given: argparse.Namespace) -> int:
    lifecycle.check_settings()
    return _on_running(state, "preview", lambda: lifecycle.engine(state, _say).preview())


def _refresh(state: State, given: argparse.Namespace) -> int:
    return _on_running(state, "refresh", lambda: lifecycle.engine(state, _say).refresh())


def _destroy(state: State, given: argparse.Namespace) -> int:
    status = _on_running(state, "destroy", lambda: lifecycle.destroy(state, lifecycle.engine(state, _say), _say))
    if kept := lifecycle.kept(state):
        _say(kept)
    return status


def _pulumi(_: State, given: argparse.Namespace) -> int:
    state = State(given.directory)
    with state.lock(f"pulumi {given.verb}"):
        return lifecycle.pulumi(state, given.verb, given.given, _say)


def _on_running(state: State, verb: str, call: Callable[[], Result]) -> int:
    with state.lock(f"python -m emulator {verb}"):
        lifecycle.require_running(state)
        _summary(verb, call())
    return 0


def _status(state: State, given: argparse.Namespace) -> int:
    processes = state.processes()
    for process in processes:
        print(f"{process.pid:>8}  {process.name:<26} {state.log(process.name)}")
    if not control_plane.is_running(state):
        print("the emulated cloud is not running; `.venv/bin/python -m emulator up` starts it")
        return 1
    if trouble := lifecycle.trouble(state):
        print(trouble)
        return 1
    print(f"Kubernetes API: https://{control_plane.endpoint(state)}")
    print(f"folder:         {state.directory}")
    if lifecycle.is_of_earlier(os.environ, state):
        print(f"this shell is of an earlier emulated cloud; type {lifecycle.EVAL}")
    return 0


def _env(state: State, given: argparse.Namespace) -> int:
    lifecycle.require_running(state)
    for name, value in lifecycle.environment(state).items():
        print(f"export {name}={shlex.quote(value)}")
    return 0


def _down(state: State, given: argparse.Namespace) -> int:
    def tell(command: str) -> None:
        with contextlib.suppress(BrokenPipeError):  # the next line raises it, too
            _say(f"interrupting `{command}`, which first ends what it started: up to 20 s")

    interrupted = state.interrupt_holder(tell)
    try:
        if state.processes():
            _say("ending what runs here, which takes about 10 s")
    finally:  # the reader of the report may have left, as `head` does
        with state.lock("python -m emulator down"):
            names = lifecycle.take_down(state)
    nothing = f"`{interrupted}` has ended everything" if interrupted else "nothing was running"
    _say(f"ended {', '.join(names)}" if names else nothing)
    if kept := [str(path.relative_to(state.directory.parent)) for path in state.kept()]:
        _say(f"kept {', '.join(kept)}; `make clean` deletes them")
    return 0


def _summary(verb: str, result: Result) -> None:
    counts = ", ".join(f"{count} {kind}" for kind, count in sorted(result.changes.items())) or "no resources"
    _say(f"{verb}: {counts} in {result.seconds:.1f} s")


def _say(line: str) -> None:
    print(_coloured(line), flush=True)


def _coloured(line: str) -> str:
    if not sys.stdout.isatty() or "NO_COLOR" in os.environ:
        return line
    return _VERB.sub(lambda found: f"{found[1]}\x1b[{_COLOURS[found[3]]}m{found[2]}\x1b[0m", line, count=1)


def _interrupt(signum: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(closed_pipe.run(main))
