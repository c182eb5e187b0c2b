"""The `pulumi` of a person's shell on the emulator: looks things up, and says what to type instead of all else.

The program runs inside the emulator's own engine process: plain Pulumi finds no way to run it, and would write into the
tracked stack file before it says so. What writes that file on purpose adds an encryption of its own to it. Run by file,
without the checkout's modules or packages, as it starts often.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

FOLDER = "emulator-shell"
"""Of `.oasis`, first on that shell's PATH."""

_TAKE_A_VALUE = frozenset(
    {
        *("-C", "--cwd", "-s", "--stack", "-v", "--verbose", "--color", "--config-file"),
        *("--memprofilerate", "--otel-traces", "--profiling", "--tracing"),
    }
)
"""Of the options that may stand before a command (`pulumi --help` and `pulumi config --help`, 3.259), those whose value
is the next word."""

_CONFIG = ("config", "conf", "cfg")

_INSTEAD = {
    "preview": "{python} -m emulator preview",
    "pre": "{python} -m emulator preview",
    "up": "{python} -m emulator up",
    "update": "{python} -m emulator up",
    "watch": "{python} -m emulator up",
    "new": "{python} -m emulator up",
    "refresh": "{python} -m emulator refresh",
    "destroy": "{python} -m emulator destroy",
    "down": "{python} -m emulator destroy",
    "dn": "{python} -m emulator destroy",
    **dict.fromkeys(_CONFIG, "$EDITOR Pulumi.local.yaml; {python} -m emulator preview"),
    "import": "$EDITOR __main__.py; {python} -m emulator preview",
    "logs": "ls .oasis/logs",
    "state": "{python} -m emulator refresh",
    "stack import": "{python} -m emulator refresh",
    "stack init": "{python} -m emulator up",
    "stack rm": "{python} -m emulator down",
    "stack remove": "{python} -m emulator down",
    "stack rename": "{python} -m emulator down; {python} -m emulator up",
    "stack change-secrets-provider": "{python} -m emulator down; {python} -m emulator up",
}
"""What would run the program, or write or delete a stack file or its state, and the commands that do it here."""


def main(arguments: Sequence[str]) -> int:
    """Hand the arguments after the first, which is Pulumi's own program, on to it; or refuse them with status 2."""
    program, *given = arguments
    words = _words(given)
    command = " ".join(words[: 2 if words[:1] == ["stack"] else 1])
    instead = _INSTEAD.get(command)
    reads = command in _CONFIG and words[1:2] in ([], ["get"])
    if instead is None or reads or {"-h", "--help"} & set(given):
        os.execv(program, ["pulumi", *given])
    writes = words[0] in ("stack", "logs", *_CONFIG)
    why = "it would change the stack file" if writes else "plain Pulumi cannot run the program on the emulated cloud"
    if command in ("state", "stack import"):
        why = "it would change what is known of the emulated cloud, and nothing in it"
    named = " ".join(words[: 2 if words[0] in ("stack", "state", *_CONFIG) else 1])
    beside = os.path.relpath(sys.executable)
    python = sys.executable if beside.startswith("..") else beside
    print(
        f"pulumi {named}: {why}; nothing was done. Type instead:\n  "
        f"{instead.format(python=python)}\nFor a stack on Google Cloud use a shell without the emulator's `env`.",
        file=sys.stderr,
    )
    return 2


def _words(given: Sequence[str]) -> list[str]:
    """The command and its own: what is neither an option nor an option's value."""
    words: list[str] = []
    value = False
    for word in given:
        if not value and not word.startswith("-"):
            words.append(word)
        value = not value and word in _TAKE_A_VALUE
    return words


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
