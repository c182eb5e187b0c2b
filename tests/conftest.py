"""Fixtures that every test may use."""

import signal

import pytest

from tests.deployment import Deploy
from tests.deployment import deploy as run_under_mocks

# A runner in the background (nohup, some CI) has Ctrl-C ignored, which every program that a test starts would inherit.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def deploy() -> Deploy:
    """`deploy(program, config=None, preview=False)`: what a program registers, under Pulumi's mocks."""
    return run_under_mocks
