"""The function that Ray Train runs on each worker, which the driver can name without importing torch.

A worker's process imports this module too, and nothing of the driver's.
"""

from __future__ import annotations

from typing import Any


def work(job: dict[str, Any]) -> dict[str, Any]:
    """The `train_loop_per_worker`: `worker.work`, imported where it runs."""
    from workloads.convnext.run import worker

    return worker.work(job)
