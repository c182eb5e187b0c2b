"""Fixtures of the tests of the workloads."""

import os

import pytest

from tests.support.command_line import CommandLine


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str]) -> CommandLine:
    """The command line."""
    return CommandLine(capsys)


@pytest.fixture
def nothing_set(monkeypatch: pytest.MonkeyPatch) -> None:
    """No variable says anything of a stack, a Ray or W&B."""
    for name in [name for name in os.environ if name.startswith(("OASIS_", "RAY_", "WANDB_"))]:
        monkeypatch.delenv(name)
