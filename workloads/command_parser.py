"""An argparse parser that reports unknown words itself, instead of leaving that to its parent parser."""

from __future__ import annotations

import argparse
import math
import re
from typing import Any, NoReturn

from workloads.errors import did_you_mean


def seconds(text: str) -> float:
    """The type of an argument that says how long to wait: seconds, 0 or more."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not value >= 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds, 0 or more")
    return value


_CHOICE = re.compile(r"invalid choice: '([^']*)' \(choose from (.*)\)")


class CommandParser(argparse.ArgumentParser):
    """Exits with 2, its own usage and the nearest known word; so do the parsers of its commands."""

    def parse_known_args(self, *given: Any, **named: Any) -> tuple[Any, list[str]]:
        """As argparse's, but no argument is left over: the first parser that does not know one refuses it."""
        options, unknown = super().parse_known_args(*given, **named)
        if unknown:
            near = did_you_mean(unknown[0].partition("=")[0], re.findall(r"--[\w-]+", self.format_help()))
            self.error(f"unrecognized arguments: {' '.join(unknown)}{near}")
        return options, unknown

    def error(self, message: str) -> NoReturn:
        """As argparse's, with the nearest of the choices where what was given is none of them."""
        wrong = _CHOICE.search(message)
        super().error(message + (did_you_mean(wrong[1], re.findall(r"[\w-]+", wrong[2])) if wrong else ""))
