"""Google's answers, fetched in parallel within some seconds, and kept for when it does not answer."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from oasis_stack.command_line import stack_file
from oasis_stack.preflight.google import Ask, UnseenError, asked

STALE = timedelta(days=1)
"""An older one is shown, and decides nothing: capacity changes within hours."""


@dataclass(frozen=True, kw_only=True)
class Answer:
    """Google's answer, and its time."""

    content: Any
    """Its JSON."""
    asked: datetime

    def age(self, now: datetime) -> str:
        """Its age in words, behind a space; empty for one that came now."""
        age = now - self.asked
        if not age:
            return ""
        minutes = age // timedelta(minutes=1)
        told = f"{minutes} min" if minutes < 60 else f"{minutes // 60} h" if age < STALE else f"{age.days} d"
        return f" ({told} ago{': too old to go by' if self.is_stale(now) else ''})"

    def is_stale(self, now: datetime) -> bool:
        """Whether it is too old to decide anything."""
        return now - self.asked >= STALE


@dataclass(frozen=True, kw_only=True)
class Answers:
    """What is known of some questions, by their names."""

    now: datetime
    known: Mapping[str, Answer]
    """Of this run where there is one, else the last that was kept."""
    problems: Mapping[str, UnseenError]
    """Why Google did not answer this time."""
    refused: str
    """Why it was asked nothing; empty where it was."""
    late: int
    """Questions whose answers had not come when time was up."""


def gather(questions: Mapping[str, Ask], file: Path, seconds: float, now: datetime) -> Answers:
    """Ask, and keep what came; for the rest take what the file has kept.

    Args:
        questions: by name, as they are kept.
        file: of one stack; it need not be there.
        seconds: after which nothing is waited for.
        now: time of the answers.
    """
    came, refused = asked(questions, seconds)
    problems = {name: found for name, found in came.items() if isinstance(found, UnseenError)}
    fresh = {name: Answer(content=found, asked=now) for name, found in came.items() if name not in problems}
    before = _kept(file)
    if fresh:
        _keep(file, {**before, **fresh})
    known = {name: answer for name, answer in {**before, **fresh}.items() if name in questions}
    late = 0 if refused else len(questions) - len(came)
    return Answers(now=now, known=known, problems=problems, refused=refused, late=late)


def _kept(file: Path) -> dict[str, Answer]:
    """What the file holds; nothing where it is none of ours."""
    try:
        return {
            str(name): Answer(content=one["content"], asked=datetime.fromisoformat(one["asked"]).astimezone(UTC))
            for name, one in json.loads(file.read_text(encoding="utf-8")).items()
        }
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return {}


def _keep(file: Path, answers: Mapping[str, Answer]) -> None:
    content = {name: {"asked": answer.asked.isoformat(), "content": answer.content} for name, answer in answers.items()}
    try:
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        file.touch(mode=0o600)
        stack_file.replace(file, json.dumps(content, indent=1))
    except OSError:
        return  # a checkout that cannot be written: the answers are shown all the same
