"""What holds for every test of the trainer."""

from __future__ import annotations

import pytest
import torch


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> None:
    """As a worker has it; two threads on two busy cores wait for each other."""
    torch.set_num_threads(1)
