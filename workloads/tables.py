"""Tables: no wider than the terminal, and no line of theirs ends in spaces."""

from __future__ import annotations

import re
import sys
from typing import Any

from rich.console import Console
from rich.table import Column, Table

WIDE = 1000
"""Columns where the output is no terminal: more than any table takes, so that each row is one line."""

_PADDING = re.compile(r"(?: |\x1b\[[\d;]*m)+$", re.MULTILINE)
"""Spaces at the end of a line, and the terminal's styles between and after them."""


def plain(*headings: Column | str, **look: Any) -> Table:
    """A table without lines; `look` as of rich's `Table`."""
    return Table(*headings, box=None, pad_edge=False, **look)


def show(table: Table, width: int = WIDE) -> None:
    """Print a table; its cells are plain text, which may hold square brackets.

    Args:
        table: what to print.
        width: columns where the output is no terminal.
    """
    console = Console(width=None if sys.stdout.isatty() else width, markup=False, highlight=False)
    print(text(table, console), end="")


def text(table: Table, console: Console) -> str:
    """A table as a console shows it."""
    with console.capture() as captured:
        console.print(table)
    return _PADDING.sub(lambda found: found[0].replace(" ", ""), captured.get())
