"""What the engine says while it works: one compact line per finished resource, errors under the resources' names."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable
from typing import Any

_VERBS = {
    "create": "created",
    "update": "updated",
    "delete": "deleted",
    "replace": "replaced",
    "create-replacement": "created anew",
    "delete-replaced": "deleted the old",
    "import": "adopted",
    "import-replacement": "adopted anew",
    "read": "read",
    "refresh": "read",
    "discard": "forgot",
    "discard-replaced": "forgot the old",
}
_QUIET = {"same", "read", "refresh"}
_EPILOGUE = re.compile(r"(preview|update|destroy|refresh) failed")
_PREAMBLE = re.compile(r"^(an unhandled error occurred: |python inline source runtime error: |Preview failed: )+")
_FRAMES = re.compile(r"(?s).*Traceback \(most recent call last\):\n(?:[ \t][^\n]*\n)+")
_MARKUP = re.compile(r"<\{%.*?%\}>|\x1b\[[0-9;]*m")


class Progress:
    """Listens to one run of the engine."""

    def __init__(self, report: Callable[[str], None]) -> None:
        self._report = report
        self._begun = time.monotonic()
        self._errors: dict[str, list[str]] = {}
        self.changes: dict[str, int] = {}
        """Resources by what happened to them, once the run has ended."""

    def heard(self, event: Any) -> None:
        """Take one `pulumi.automation.EngineEvent`."""
        if event.res_outputs_event is not None:
            self._finished(event.res_outputs_event.metadata)
        if event.res_op_failed_event is not None:
            metadata = event.res_op_failed_event.metadata
            self._report(self._line(f"failed to {_op(metadata)}", metadata.urn))
        if event.diagnostic_event is not None:
            self._told(event.diagnostic_event)
        if event.summary_event is not None:
            counts = event.summary_event.resource_changes or {}
            self.changes = {str(getattr(op, "value", op)): count for op, count in counts.items()}

    def failures(self) -> str:
        """Every resource's errors, one paragraph each; tracebacks went to standard error."""
        told = [(name, message) for name, messages in self._errors.items() for message in dict.fromkeys(messages)]
        reasons = [(name, message) for name, message in told if not _EPILOGUE.fullmatch(message)]
        return "\n".join(f"  {name}: {message}" for name, message in reasons or told)

    def _finished(self, metadata: Any) -> None:
        if _op(metadata) in _QUIET:
            return
        kept = _op(metadata) == "delete" and metadata.old is not None and metadata.old.retain_on_delete
        verb = "kept" if kept else _VERBS.get(_op(metadata), _op(metadata))
        self._report(self._line(verb, metadata.urn))

    def _told(self, event: Any) -> None:
        message = _MARKUP.sub("", event.message).strip()
        if not message or message.startswith("using pulumi-resource-"):  # where it found a plugin
            return
        name = _name(event.urn) if event.urn else "the program"
        if event.severity == "error":
            print(message, file=sys.stderr, flush=True)
            self._errors.setdefault(name, []).append(_without_traceback(message))
        elif event.severity in ("warning", "info", "info#err"):
            self._report(f"{time.monotonic() - self._begun:6.1f} s  {name}: {message}")

    def _line(self, verb: str, urn: str) -> str:
        return f"{time.monotonic() - self._begun:6.1f} s  {verb:<16} {_name(urn)}"


def _without_traceback(message: str) -> str:
    return _FRAMES.sub("", _PREAMBLE.sub("", message)).strip()


def _op(metadata: Any) -> str:
    return str(getattr(metadata.op, "value", metadata.op))


def _name(urn: str) -> str:
    """`RdmaNetwork rdma` of a URN: its last type's last word and its name."""
    parts = urn.split("::")
    kind = parts[2].rpartition("$")[2].rpartition(":")[2]
    return f"{kind} {parts[3]}"
