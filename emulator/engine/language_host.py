"""The language host that plain `pulumi` finds on the emulator's PATH: runs `__main__.py` when the engine asks for it.

The command line's own host for Python is not published as a Go module. This one is the SDK's, which serves the inline
programs of the Automation API; it prints its port first, as the engine expects (pulumi/pulumi, sdk/python/cmd/
pulumi-language-python).
"""

from __future__ import annotations

import os
import runpy
import sys
from pathlib import Path
from typing import Any

from pulumi.automation._server import LanguageServer
from pulumi.runtime.proto import language_pb2_grpc

from emulator.gcp import types as gcp_types
from emulator.gcp.tables import ROWS
from emulator.protocol.plugin import serve


class LanguageHost(LanguageServer):
    """One engine's host; a preview and the update after it are two runs."""

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

    def _program(self) -> None:
        gcp_types.import_ahead(ROWS).join()  # two threads must not fill the same packages
        runpy.run_path(self._main, run_name="__main__")


def main() -> None:
    """Serve until the engine ends this process; its address is the first argument that is no option."""
    engine = next(word for word in sys.argv[1:] if not word.startswith("-"))
    serve(lambda server: language_pb2_grpc.add_LanguageRuntimeServicer_to_server(LanguageHost(engine), server))


if __name__ == "__main__":
    main()
