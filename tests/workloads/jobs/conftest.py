"""Fixtures of the tests of jobs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import fake_ray
from tests.support.fake_ray import FakeRay
from workloads.jobs import ray_job


@pytest.fixture
def ray(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeRay]:
    """A stack whose dashboard answers at its URL, the cluster of any RayJob too, and a kubectl that plays KubeRay."""
    monkeypatch.setattr(ray_job, "_POLL_SECONDS", 0.02)
    with fake_ray.standing(tmp_path, monkeypatch) as found:
        yield found
