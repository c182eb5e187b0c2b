"""The command line of the workloads in this process, as a person gives it."""

from __future__ import annotations

import argparse
from collections.abc import Callable

import pytest
from _pytest.capture import CaptureResult

from workloads.__main__ import main
from workloads.cluster.session import Place

LAPTOP = Place(address=None, environment=None)
"""A machine without a stack, which would start a Ray of its own."""


def parsed(add: Callable[[argparse.ArgumentParser], None], *words: str, **known: object) -> argparse.Namespace:
    """What a command's own `add_<name>_arguments` makes of its words; `known` is what the command line adds."""
    parser = argparse.ArgumentParser()
    add(parser)
    return parser.parse_args(words, argparse.Namespace(words=words, **known))


class CommandLine:
    """Gives a command; what it prints, and has printed since a test last looked, once it has ended as expected."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def __call__(self, *words: str, code: int = 0) -> CaptureResult[str]:
        ended = main(words)
        said = self._capsys.readouterr()
        assert ended == code, f"`{' '.join(words)}` ended with {ended}, not {code}:\n{said.out}{said.err}"
        return said
