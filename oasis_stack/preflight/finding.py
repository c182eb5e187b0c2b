"""The result of one question about a project."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal

from oasis_stack.preflight.google import Google, UnseenError
from oasis_stack.settings.schema import Settings

Verdict = Literal["good", "bad", "unknown", "told"]
"""`bad`: `up` would fail, or wait in vain; `unknown`: Google's answer does not tell; `told`: information that `up` does
not depend on."""


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One thing that was looked at."""

    verdict: Verdict
    what: str
    """What is so, with its values."""
    remedy: str = ""
    """What to do about it; empty where nothing is to be done."""


@dataclass(frozen=True, kw_only=True)
class Check:
    """One subject."""

    title: str
    look: Callable[[Settings, Google], Iterable[Finding]]

    def findings(self, settings: Settings, google: Google) -> list[Finding]:
        """Its findings; where Google does not answer, one that says so."""
        found: list[Finding] = []
        try:
            found.extend(self.look(settings, google))
        except UnseenError as unseen:
            found.append(unanswered(unseen))
        return found


def good(what: str) -> Finding:
    """Nothing is to be done."""
    return Finding(verdict="good", what=what)


def bad(what: str, remedy: str) -> Finding:
    """Something is missing."""
    return Finding(verdict="bad", what=what, remedy=remedy)


def unknown(what: str, remedy: str) -> Finding:
    """Google's answer, or its lack, does not tell."""
    return Finding(verdict="unknown", what=what, remedy=remedy)


def told(what: str) -> Finding:
    """Something to know."""
    return Finding(verdict="told", what=what)


def unanswered(unseen: UnseenError) -> Finding:
    """Google did not answer."""
    return unknown(unseen.problem, unseen.remedy)
