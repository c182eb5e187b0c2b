"""Fixtures that every test may use."""

import os
import signal

import pytest

from tests.support.deployment import Deployment
from tests.support.program import stack
from tests.support.setting_examples import everything_changed

# A runner in the background (nohup, some CI) has Ctrl-C ignored, which every program that a test starts would inherit.
signal.signal(signal.SIGINT, signal.default_int_handler)

# One process per core runs tests side by side: were torch to start a thread per core in each of them, every operation
# would wait for threads that have no core. Read by OpenMP when torch is imported.
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ["OMP_NUM_THREADS"] = "1"


SERVERS = ("emulated", "ray")
"""Marks of tests that share servers of gigabytes, which a fixture starts once for a session."""


def pytest_itemcollected(item: pytest.Item) -> None:
    """Have the tests of each of these marks run one after the other, in one process (`--dist loadgroup`)."""
    for name in SERVERS:
        if item.get_closest_marker(name):
            item.add_marker(pytest.mark.xdist_group(name))


@pytest.fixture(scope="session")
def full() -> Deployment:
    """The stack with every component, by its defaults."""
    return stack()


@pytest.fixture(scope="session")
def other() -> Deployment:
    """The same with every setting changed."""
    return stack(everything_changed(but=set()))
