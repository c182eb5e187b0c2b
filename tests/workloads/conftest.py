"""Fixtures of the tests of the workloads."""

import pytest

from tests.support.command_line import CommandLine


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str]) -> CommandLine:
    """The command line."""
    return CommandLine(capsys)
