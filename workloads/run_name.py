"""The rules for a run's name, which serves for a folder, an object's address, a Ray actor and a W&B run."""

from __future__ import annotations

import re
import secrets
import time

from workloads.errors import UsageError

_ALLOWED = re.compile(r"[a-z0-9]([a-z0-9._-]{0,61}[a-z0-9])?")
"""Lower case, as the narrowest of them wants it; without a slash, so that it names nothing outside its folder."""


def unnamed(kind: str) -> str:
    """The name of a run that was given none: its kind, now, and four digits by chance.

    Jobs that were queued together begin in the same second, on clusters that know nothing of each other.
    """
    return f"{kind}-{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}-{secrets.token_hex(2)}"


def check(flag: str, name: str) -> None:
    """Refuse an invalid run name.

    Args:
        flag: that gave the name.
        name: as given.

    Raises:
        UsageError: it is none.
    """
    if not _ALLOWED.fullmatch(name):
        raise UsageError(
            f"{flag} is {name!r}; a name has up to 63 of a-z, 0-9, '.', '_', '-', with a letter or digit at both ends.",
            "Choose another name.",
        )
