"""The language host that plain `pulumi` finds on the emulator's PATH: runs `__main__.py` when the engine asks for it,
and policy packs beside it, each by the Python of its own environment.

The command line's own host for Python is not published as a Go module. This one is the SDK's, which serves the inline
programs of the Automation API; it prints its port first, as the engine expects (pulumi/pulumi, sdk/python/cmd/
pulumi-language-python).
"""

from __future__ import annotations

import os
import queue
import runpy
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

import grpc
from google.protobuf import json_format
from pulumi.automation._server import LanguageServer
from pulumi.runtime.proto import language_pb2, language_pb2_grpc

from emulator.gcp import types as gcp_types
from emulator.gcp.tables import ROWS
from emulator.protocol.plugin import serve


class LanguageHost(LanguageServer):
    """One engine's host; a preview and the following update are two runs."""

    def __init__(self, engine: str) -> None:
        """Prepare to run programs for the engine at this address."""
        super().__init__(self._program)
        self._engine = engine
        self._main = ""

    def Run(self, request: Any, context: Any) -> Any:
        os.chdir(request.pwd)
        self._main = str(Path(request.pwd) / "__main__.py")
        request.args[:] = [self._engine]  # where the SDK's server looks for the engine's address
        return super().Run(request, context)

    def RunPlugin(self, request: Any, context: Any) -> Iterator[language_pb2.RunPluginResponse]:
        """Run a folder's program, such as a policy pack, until it ends or the engine no longer needs it."""
        folder = Path(request.info.root_directory)
        python = folder / _virtualenv(request.info) / "bin" / "python"
        if not python.exists():
            why = f"{python} is missing, with the packages of {folder / 'requirements.txt'}"
            remedy = "`make policies` installs those of the pack in `policies`"
            context.abort(grpc.StatusCode.FAILED_PRECONDITION, f"{why}; {remedy}")
        environment = dict(pair.split("=", 1) for pair in request.env)
        environment.pop("PYTHONPATH", None)  # the emulator's, for this process only
        with subprocess.Popen(
            [python, "-u", request.info.program_directory, *request.args],
            cwd=request.pwd,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        ) as child:
            if not context.add_callback(child.terminate):  # the engine has gone meanwhile
                child.terminate()
            yield from _heard(child)
        yield language_pb2.RunPluginResponse(exitcode=child.returncode)

    def _program(self) -> None:
        gcp_types.import_ahead(ROWS).join()  # two threads must not fill the same packages
        runpy.run_path(self._main, run_name="__main__")


def _virtualenv(info: Any) -> str:
    """The folder of a program's environment, by default `venv` (pulumi/pulumi, sdk/python/cmd/pulumi-language-python,
    RunPlugin)."""
    return json_format.MessageToDict(info.options).get("virtualenv") or "venv"


def _heard(child: subprocess.Popen[bytes]) -> Iterator[language_pb2.RunPluginResponse]:
    """The output of a process, until it has closed both streams."""
    found: queue.SimpleQueue[language_pb2.RunPluginResponse | None] = queue.SimpleQueue()

    def read(pipe: IO[bytes], said: Callable[[bytes], language_pb2.RunPluginResponse]) -> None:
        while chunk := os.read(pipe.fileno(), 65536):
            found.put(said(chunk))
        found.put(None)

    assert child.stdout and child.stderr
    pipes = (
        (child.stdout, lambda chunk: language_pb2.RunPluginResponse(stdout=chunk)),
        (child.stderr, lambda chunk: language_pb2.RunPluginResponse(stderr=chunk)),
    )
    for pipe_and_answer in pipes:
        threading.Thread(target=read, args=pipe_and_answer, daemon=True).start()
    for _ in pipes:
        yield from iter(found.get, None)


def main() -> None:
    """Serve until the engine ends this process; its address is the first argument that is no option."""
    engine = next(word for word in sys.argv[1:] if not word.startswith("-"))
    serve(lambda server: language_pb2_grpc.add_LanguageRuntimeServicer_to_server(LanguageHost(engine), server))


if __name__ == "__main__":
    main()
