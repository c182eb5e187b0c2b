"""Fixtures that every test may use."""

import copy
import gc
import os
import signal
from collections.abc import Callable, Generator, Iterator

import pytest

from oasis_stack.command_line.offline import Deployment
from tests.support import left_behind
from tests.support.program import deploy_stack
from tests.support.setting_examples import everything_changed

# A runner in the background (nohup, some CI) has Ctrl-C ignored, which every program that a test starts would inherit.
signal.signal(signal.SIGINT, signal.default_int_handler)

# Processes run tests side by side, as many as there are cores or, with servers, two: were torch to start a thread per
# core in each of them, every operation would wait for threads that have no core. Read by OpenMP when torch is imported.
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ["OMP_NUM_THREADS"] = "1"

# The collector would look through the million objects of Pulumi's SDK again and again: a seventh of the tests' time.
gc.set_threshold(50_000, 20, 20)

# Some machines set it for everything: what a test waits for has to come on those that do not.
os.environ.pop("PYTHONUNBUFFERED", None)

SERVERS = ("emulated", "ray")
"""Marks of tests that start servers, gigabytes of them."""

SHARED = ("emulated", "cluster", "bare_cluster")
"""Fixtures that start some once for all tests of a process, the ones with most tests first."""


def pytest_itemcollected(item: pytest.Function) -> None:
    """Have tests that share servers run in one process, and of the others those of one file (`--dist loadgroup`)."""
    if any(map(item.get_closest_marker, SERVERS)):
        group = next((name for name in SHARED if name in item.fixturenames), item.path.stem)
        item.add_marker(pytest.mark.xdist_group(group))


def pytest_collection_modifyitems(items: list[pytest.Function]) -> None:
    """Begin with the longest groups, lest one of them goes on alone when all others have ended."""
    items.sort(key=lambda item: [name not in item.fixturenames for name in SHARED])


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Function, nextitem: pytest.Item | None) -> Generator[None]:
    """End shared servers with the last test in a row that uses them: idle ones take half a core from all others."""
    yield
    following = nextitem.fixturenames if isinstance(nextitem, pytest.Function) else ()
    for name in set(SHARED) & set(item.fixturenames) - set(following):
        finish: Callable[..., None] = item._fixtureinfo.name2fixturedefs[name][-1].finish
        finish(item._request)  # pytest starts it anew for a test that asks for it again


@pytest.fixture(scope="session", autouse=True)
def nothing_left_behind(tmp_path_factory: pytest.TempPathFactory) -> None:
    """What this process's tests have started ends with it, also where Ctrl-C leaves the fixtures no time."""
    left_behind.end_after_this_process(tmp_path_factory.getbasetemp())


@pytest.fixture(scope="session")
def full() -> Iterator[Deployment]:
    """The stack with every component, by its defaults."""
    yield from _unchanged(deploy_stack())


@pytest.fixture(scope="session")
def other() -> Iterator[Deployment]:
    """The same with every setting changed."""
    yield from _unchanged(deploy_stack(everything_changed(but=set())))


def _unchanged(deployment: Deployment) -> Iterator[Deployment]:
    """A deployment that tests share: none of them may have changed what the program registered."""
    before = [copy.deepcopy(found.inputs) for found in deployment]
    yield deployment
    assert [found.inputs for found in deployment] == before, "a test has changed what all share"
