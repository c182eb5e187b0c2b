"""The engine's progress: one compact line per finished resource, errors under the resources' names."""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from emulator.protocol.wire import UNKNOWN

_VERBS = {
    "create": ("created", "would create"),
    "update": ("updated", "would update"),
    "delete": ("deleted", "would delete"),
    "replace": ("replaced", "would replace"),
    "create-replacement": ("created anew", "would create anew"),
    "delete-replaced": ("deleted the old", "would delete the old"),
    "import": ("adopted", "would adopt"),
    "import-replacement": ("adopted anew", "would adopt anew"),
    "discard": ("forgot", "would forget"),
    "discard-replaced": ("forgot the old", "would forget the old"),
    "kept": ("kept", "would keep"),
}
"""Words for an operation in an `up` or a destroy, and in a preview."""

_QUIET = {"same", "read", "refresh"}
_EPILOGUE = re.compile(r"(preview|update|destroy|refresh) failed")
_PREAMBLE = re.compile(r"^(an unhandled error occurred: |python inline source runtime error: |Preview failed: )+")
_FRAMES = re.compile(r"(?s).*Traceback \(most recent call last\):\n(?:[ \t][^\n]*\n)+")
_STEP = re.compile(r"""\.?([^.\["\]]+)|\[(\d+)\]|\["((?:[^"\\]|\\.)*)"\]""")
"""One step of a property path (Pulumi documentation, "Resource options: ignoreChanges"): a name, an index, a key."""
_VALUE_WIDTH = 60
_SILENCE_SECONDS = 10.0
_MARKUP = re.compile(r"<\{%.*?%\}>|\x1b\[[0-9;]*m")


class Progress:
    """Listens to one run of the engine; for a preview, reports what would be done and which properties differ."""

    def __init__(self, report: Callable[[str], None], *, preview: bool = False) -> None:
        self._tell, self._preview = report, preview
        self._begun = self._told_at = time.monotonic()
        self._passed: set[str] = set()
        self._kept = 0
        self._errors: dict[str, list[str]] = {}
        self.changes: dict[str, int] = {}
        """Numbers of resources by what happened to them, once the run has ended."""

    def heard(self, event: Any) -> None:
        """Handle one `pulumi.automation.EngineEvent`."""
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
            if self._kept:  # the engine counts them as deleted
                self.changes |= {"delete": self.changes.get("delete", 0) - self._kept, "kept": self._kept}

    def keep_telling(self) -> None:
        """Report that the engine still runs, whenever nothing was reported for long; does not return."""
        while True:
            time.sleep(max(0.1, self._told_at + _SILENCE_SECONDS - time.monotonic()))
            if time.monotonic() - self._told_at >= _SILENCE_SECONDS:
                self._report(f"{time.monotonic() - self._begun:6.1f} s  goes on; resources so far: {len(self._passed)}")

    def failures(self) -> str:
        """Every resource's errors, one paragraph each; tracebacks went to standard error."""
        told = [(name, message) for name, messages in self._errors.items() for message in dict.fromkeys(messages)]
        reasons = [(name, message) for name, message in told if not _EPILOGUE.fullmatch(message)]
        return "\n".join(f"  {name}: {message}" for name, message in reasons or told)

    def _report(self, line: str) -> None:
        self._told_at = time.monotonic()
        self._tell(line)

    def _finished(self, metadata: Any) -> None:
        self._passed.add(metadata.urn)
        # A component is only its children, one of which often has its name.
        if _op(metadata) in _QUIET or not metadata.provider:
            return
        kept = _op(metadata) == "delete" and metadata.old is not None and metadata.old.retain_on_delete
        self._kept += kept
        op = "kept" if kept else _op(metadata)
        verbs = _VERBS.get(op, (op, op))
        self._report(self._line(verbs[self._preview], metadata.urn))
        for line in _differences(metadata) if self._preview and _op(metadata) in ("update", "replace") else ():
            self._report(f"{'':10}{line}")

    def _told(self, event: Any) -> None:
        message = _MARKUP.sub("", event.message).strip()
        if event.ephemeral or not message or message.startswith("using pulumi-resource-"):  # where it found a plugin
            return
        name = _name(event.urn) if event.urn else "the program"
        if event.severity == "error":
            print(message, file=sys.stderr, flush=True)
            self._errors.setdefault(name, []).append(_without_traceback(message))
        elif event.severity in ("warning", "info", "info#err"):
            self._report(f"{time.monotonic() - self._begun:6.1f} s  {name}: {message}")

    def _line(self, verb: str, urn: str) -> str:
        return f"{time.monotonic() - self._begun:6.1f} s  {verb:<16} {_name(urn)}"


def _differences(metadata: Any) -> Iterator[str]:
    """A line for each property that differs: `~ labels.environment: "local" -> "test"`."""
    old, new = (state.inputs or {} if state is not None else {} for state in (metadata.old, metadata.new))
    # For a provider's own settings, the engine does not say what differs.
    named = metadata.diffs or [key for key in {**old, **new} if old.get(key) != new.get(key)]
    detailed = metadata.detailed_diff or dict.fromkeys(named)
    for path, diff in sorted(detailed.items()):
        kind = str(getattr(diff.diff_kind, "value", diff.diff_kind)) if diff else "update"
        before, after = _shown(_at(old, path)), _shown(_at(new, path))
        change = {"add": f"+ {path}: {after}", "delete": f"- {path}: {before}"}
        again = ", which replaces it" if kind.endswith("-replace") else ""
        yield change.get(kind.removesuffix("-replace"), f"~ {path}: {before} -> {after}") + again


def _at(values: Any, path: str) -> Any:
    for name, index, key in _STEP.findall(path):
        if isinstance(values, list):
            values = values[int(index)] if index and int(index) < len(values) else None
        else:
            values = values.get(name or key) if isinstance(values, Mapping) else None
    return values


def _shown(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False).replace(f'"{UNKNOWN}"', "(known after up)")
    return text if len(text) <= _VALUE_WIDTH else f"{text[:_VALUE_WIDTH]}..."


def _without_traceback(message: str) -> str:
    return _FRAMES.sub("", _PREAMBLE.sub("", message)).strip()


def _op(metadata: Any) -> str:
    return str(getattr(metadata.op, "value", metadata.op))


def _name(urn: str) -> str:
    """A URN's short name: the last word of its last type, and its name (`RdmaNetwork rdma`)."""
    parts = urn.split("::")
    kind = parts[2].rpartition("$")[2].rpartition(":")[2]
    return f"{kind} {parts[3]}"
