"""The `pulumi` of a user's shell on the emulator: Pulumi itself, plus what the emulator has to do.

Commands that run the program or change resources use the emulator's copy of the stack file, since Pulumi would write
its encryption into the tracked one. Commands that would write there unasked, or change the state but not the cloud,
print what to type instead. Run as a file, without the checkout's modules or packages, because it is started
often.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

FOLDER = "emulator-shell"
"""Folder in `.oasis` that is first on that shell's PATH."""

_TAKE_A_VALUE = frozenset(
    {
        *("-C", "--cwd", "-s", "--stack", "-v", "--verbose", "--color", "--config-file"),
        *("--memprofilerate", "--otel-traces", "--profiling", "--tracing"),
    }
)
"""Options before a command (`pulumi --help` and `pulumi config --help`, 3.259) whose value is the next word."""

_CONFIG = ("config", "conf", "cfg")

_RUN = {
    **dict.fromkeys(("preview", "pre"), "preview"),
    **dict.fromkeys(("up", "update"), "up"),
    "refresh": "refresh",
    **dict.fromkeys(("destroy", "down", "dn"), "destroy"),
}
"""Commands, with their other names, that run the program or change resources."""

_INSTEAD = {
    "watch": "pulumi up",
    "new": "pulumi up",
    "import": "$EDITOR __main__.py; pulumi preview",
    "logs": "ls .oasis/logs",
    "state": "pulumi refresh",
    "stack init": "pulumi up",
    "stack rm": "{python} -m emulator down",
    "stack remove": "{python} -m emulator down",
    "stack rename": "{python} -m emulator down; {python} -m emulator up",
    "stack change-secrets-provider": "{python} -m emulator down; {python} -m emulator up",
}
"""Commands that would write or delete a stack file or its state, and the commands to use here."""


def main(arguments: Sequence[str]) -> int:
    """Pass the other arguments to Pulumi's own program, which is the first, or refuse them with status 2."""
    program, *given = arguments
    words = _words(given)
    command = " ".join(words[: 2 if words[:1] == ["stack"] else 1])
    helps = {"-h", "--help"} & set(given)
    if command in _RUN and not helps:
        os.environ["PYTHONPATH"] = str(Path(__file__).parents[2])
        beside = ["-m", "emulator", "pulumi", str(Path(program).parents[1]), _RUN[command]]
        os.execv(sys.executable, [sys.executable, *beside, *given])
    if command in _CONFIG and "--secret" in given:
        why = "the emulator encrypts with a passphrase of its own"
        return _refused("config", why, "pulumi config set KEY VALUE   # in the clear, into the tracked file")
    if command not in _INSTEAD or helps:
        os.execv(program, ["pulumi", *given])
    why = "it would change the stack file"
    if command == "state":
        why = "it would change what is known of the emulated cloud, and nothing in it"
    named = " ".join(words[: 2 if words[0] in ("stack", "state") else 1])
    return _refused(named, why, _INSTEAD[command])


def _refused(command: str, why: str, instead: str) -> int:
    beside = os.path.relpath(sys.executable)
    python = sys.executable if beside.startswith("..") else beside
    print(
        f"pulumi {command}: {why}; nothing was done. Type instead:\n  {instead.format(python=python)}\n"
        "For a stack on Google Cloud use a shell without the emulator's `env`.",
        file=sys.stderr,
    )
    return 2


def _words(given: Sequence[str]) -> list[str]:
    """The command and its arguments: all words that are neither an option nor an option's value."""
    words: list[str] = []
    value = False
    for word in given:
        if not value and not word.startswith("-"):
            words.append(word)
        value = not value and word in _TAKE_A_VALUE
    return words


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
