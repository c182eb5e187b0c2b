"""One run of the engine: the Automation API with `__main__.py` as the inline program. Reports JSON lines on stdout.

It is a process of its own, because the program must be imported anew each time, and because the SDK leaves
half-finished tasks behind when the engine fails.
"""

from __future__ import annotations

import json
import os
import runpy
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pulumi import automation

from emulator.engine.events import Progress
from emulator.gcp import types as gcp_types


def main() -> None:
    """Carry out the request in the first argument, a JSON object; see `Engine._run`."""
    request = json.loads(sys.argv[1])
    # What the program prints must not end up between the reports.
    reports, sys.stdout = sys.stdout, sys.stderr

    def report(**content: object) -> None:
        reports.write(json.dumps(content) + "\n")  # one write, as several threads report
        reports.flush()

    progress = Progress(lambda line: report(line=line), preview=request["verb"] == "preview")
    threading.Thread(target=progress.keep_telling, daemon=True).start()
    try:
        stack = _stack(request)
        outputs = _carry_out(stack, request, progress.heard)
    except automation.CommandError as error:
        report(error=progress.failures() or str(error))
    else:
        report(changes=progress.changes, outputs=outputs)


def _carry_out(stack: automation.Stack, request: dict[str, Any], told: Callable[[Any], None]) -> dict[str, Any]:
    if request["verb"] == "up":
        outputs = stack.up(on_event=told, refresh=request["refresh"]).outputs
        return {name: output.value for name, output in outputs.items()}
    getattr(stack, request["verb"])(on_event=told)
    return {}


def _stack(request: dict[str, Any]) -> automation.Stack:
    backend = automation.ProjectBackend(url=os.environ["PULUMI_BACKEND_URL"])
    options = automation.LocalWorkspaceOptions(
        work_dir=request["work_dir"],
        pulumi_home=os.environ["PULUMI_HOME"],
        project_settings=automation.ProjectSettings(name=request["project"], runtime="python", backend=backend),
    )
    main_file = str(Path(request["checkout"]) / "__main__.py")
    # While the engine's command line sets up the stack. A destroy does not run the program.
    ahead = gcp_types.import_ahead(request["types"] if request["verb"] in ("up", "preview") else ())

    def program() -> None:
        ahead.join()  # two threads must not fill the same packages
        runpy.run_path(main_file, run_name="__main__")

    return automation.create_or_select_stack(
        request["stack"],
        project_name=request["project"],
        program=program,
        opts=options,
    )


if __name__ == "__main__":
    main()
