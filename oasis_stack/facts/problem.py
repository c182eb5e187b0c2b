"""A problem with a setting, in the four parts of every refusal: key, value, what is allowed, what to do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

UNKNOWN = object()
"""Value of a key that is no setting. It is never shown: it may be a secret under a mistyped name."""


@dataclass(frozen=True, kw_only=True)
class Problem:
    """One thing a user must change, and how."""

    key: str
    """Setting at fault, from its section down: `gpu.capacity[0].mode`."""
    value: object
    """What it holds; None where it is missing, UNKNOWN where nothing by its name exists."""
    allowed: str
    """What it may hold."""
    remedy: str
    """What to do next."""

    @property
    def what(self) -> str:
        """The key, what it holds and what it may hold, without a full stop."""
        value = str(self.value).lower() if isinstance(self.value, bool) else repr(self.value)  # as YAML has it
        held = "is no setting" if self.value is UNKNOWN else "is missing" if self.value is None else f"is {value}"
        return f"{config_key(self.key)} {held}; allowed: {self.allowed}"

    @property
    def advice(self) -> str:
        """The remedy as a sentence."""
        return f"{self.remedy[:1].upper()}{self.remedy[1:]}{'' if self.remedy.endswith('?') else '.'}"

    def __str__(self) -> str:
        return f"{self.what}. {self.advice}"


class SettingsError(ValueError):
    """Settings that Google or this program would refuse: every problem at once."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        self.problems = tuple(problems)
        count = "1 setting needs" if len(problems) == 1 else f"{len(problems)} settings need"
        super().__init__("\n  - ".join([f"{count} a change; nothing was done:", *map(str, problems)]))


def config_key(key: str) -> str:
    """The key as it stands in the stack file: `zone` is `oasis:zone`, `project` is `gcp:project`."""
    return "gcp:project" if key == "project" else key if ":" in key else f"oasis:{key}"
