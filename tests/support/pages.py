"""The pages that people read: README.md, CONTRIBUTING.md and docs/."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

PAGES = {
    path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8")
    for path in (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md")))
}
"""Text of each page, by its path."""


def section(page: str, title: str) -> str:
    """The text below a heading, up to the next heading of the same or a higher level."""
    marks = re.search(rf"^(#+) {re.escape(title)}$", PAGES[page], re.MULTILINE)
    assert marks, f"{page} has no section {title!r}"
    rest = PAGES[page][marks.end() :]
    following = re.search(rf"^#{{1,{len(marks.group(1))}}} ", rest, re.MULTILINE)
    return rest[: following.start()] if following else rest
