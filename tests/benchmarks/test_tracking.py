"""The benchmark of W&B beside a training leaves nothing behind."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from typing import NoReturn

import psutil
import pytest

from benchmarks import tracking


def test_an_interrupted_benchmark_leaves_no_process_of_wandb_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> NoReturn:
        wandb.send_signal(signal.SIGSTOP)
        raise KeyboardInterrupt

    monkeypatch.setenv("WANDB_BASE_URL", "")  # which the benchmark sets
    monkeypatch.setattr(tracking, "observe", interrupted)
    words = [sys.executable, "-c", "input()", "workloads.reporting.wandb_process"]
    with subprocess.Popen(words, stdin=subprocess.PIPE) as wandb:
        try:
            with pytest.raises(KeyboardInterrupt):
                tracking.train(tmp_path, "", pairs=1, seconds=1)
            assert psutil.Process(wandb.pid).status() != psutil.STATUS_STOPPED
        finally:
            wandb.kill()
