"""The driver of a run where its end has to survive what comes after it; Ray itself is in tests/cluster."""

from __future__ import annotations

import contextlib
import dataclasses
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.command_line import LAPTOP, parsed
from workloads.cluster import run_lock
from workloads.convnext.run import driver, train
from workloads.convnext.run.run import Run
from workloads.errors import DataIntegrityError


@pytest.fixture
def run(tmp_path: Path) -> Run:
    words = ["--run", "a", "--storage", str(tmp_path / "runs"), "--results", str(tmp_path / "results")]
    return train.plan(parsed(train.add_train_arguments, *words), LAPTOP)


def test_a_collective_waits_ten_minutes_at_most_by_default(run: Run) -> None:
    assert run.collective_timeout <= 600
    group: Any = driver._trainer(run, driver.work).backend_config
    assert (group.timeout_seconds, group.data) == (run.collective_timeout, run.config.data)


@pytest.mark.parametrize("end", [{"val/accuracy": 1.0}, KeyboardInterrupt(), DataIntegrityError("torn.png.", "")])
def test_files_of_ray_train_that_cannot_be_removed_change_no_run_s_end(
    run: Run, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], end: Any
) -> None:
    def fit() -> SimpleNamespace:
        if isinstance(end, BaseException):
            raise end
        return SimpleNamespace(return_value=end)

    monkeypatch.setattr(run_lock, "hold", lambda uri, name: contextlib.nullcontext())
    monkeypatch.setattr(driver, "_await_capacity", lambda run: None)
    monkeypatch.setattr(driver, "_trainer", lambda *_: SimpleNamespace(fit=fit))
    run.folder.write("ray", b"a file, which is no folder that could be removed")
    if isinstance(end, BaseException):
        with pytest.raises(type(end)):
            driver.fit(run)
    else:
        assert driver.fit(run) == end
    assert "Ray Train's own files are left behind: cannot delete" in capsys.readouterr().out
    good = dataclasses.replace(run, folder=run.folder.child("good"))
    good.folder.child("ray").write("snapshot", b"{}")
    with contextlib.suppress(type(end) if isinstance(end, BaseException) else ValueError):
        driver.fit(good)
    assert good.folder.names() == []
