"""Rows about runs as a table for people or as JSON for programs."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from typing import Any

from rich.table import Table

from workloads import tables


def print_rows(rows: Sequence[dict[str, Any]], uri: str, *, as_json: bool) -> None:
    """Print rows, each with a value per column it has.

    Args:
        rows: `bytes` is a size and `modified` a unix time, which are shown as people read them.
        uri: where they come from, to say so when there are none.
        as_json: print them as one JSON list and nothing else.
    """
    if as_json:
        print(json.dumps(rows, indent=1))
        return
    if not rows:
        print(f"nothing of that kind in {uri}", file=sys.stderr)
        return
    columns = list(dict.fromkeys(name for row in rows for name in row))
    table = Table(box=None, pad_edge=False)
    for name in columns:
        table.add_column({"bytes": "SIZE", "modified": "AGE"}.get(name, name.upper()), overflow="fold")
    for row in rows:
        table.add_row(*(_cell(name, row.get(name)) for name in columns))
    tables.show(table)


def _cell(name: str, value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if name == "bytes" and isinstance(value, int):
        return size_text(value)
    if name == "modified" and isinstance(value, float):
        return _age(time.time() - value)
    return str(value)


def size_text(count: float) -> str:
    """Bytes as people read them, in powers of ten."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"


def _age(seconds: float) -> str:
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{max(seconds, 0):.0f} s"
