"""Fixtures that every test may use."""

import pytest

from tests.deployment import Deploy
from tests.deployment import deploy as run_under_mocks


@pytest.fixture
def deploy() -> Deploy:
    """`deploy(program, config=None, preview=False)`: what a program registers, under Pulumi's mocks."""
    return run_under_mocks
