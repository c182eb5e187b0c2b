"""The Helm repository of the local stack."""

from __future__ import annotations

import io
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from emulator.google.http_message import Request
from emulator.kubernetes import kuberay, kueue
from emulator.machine.state import State
from emulator.rest.charts import PATH, ChartRepository


def test_clients_that_come_at_once_get_charts_with_the_same_certificates(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[State] = []

    def chart(state: State) -> dict[str, bytes]:
        made.append(state)
        time.sleep(0.1)
        return {"Chart.yaml": b"{name: kueue, version: '1'}"}

    monkeypatch.setattr(kueue, "chart", chart)
    monkeypatch.setattr(kuberay, "chart", lambda: {"Chart.yaml": b"{name: kuberay, version: '1'}"})
    repository = ChartRepository(State(tmp_path))

    def asked(name: str) -> bytes:
        request = Request(method="GET", path=PATH + name, query={}, headers={}, body=io.BytesIO(), host="")
        answer = repository.answer(request)
        assert answer
        return answer.body

    with ThreadPoolExecutor() as at_once:
        assert all(at_once.map(asked, ("index.yaml", "kueue-1.tgz")))

    assert len(made) == 1
