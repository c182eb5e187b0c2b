"""What `make destroy` says that stays, and what that costs, asked of the emulated Google."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from emulator.google.callers import Identity, set_identity
from oasis_stack.facts import prices
from oasis_stack.preflight import kept
from oasis_stack.settings.settings import from_config, parse
from tests.emulator.google import PROJECT, Google, enable, lead_clients_to, served
from tests.support.stacks import FULL, changed

NOW = datetime(2026, 11, 28, 12, tzinfo=UTC)
RUNS, DATA = f"gs://{PROJECT}-oasis-runs", f"gs://{PROJECT}-oasis-data"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Google]:
    with served(tmp_path_factory.mktemp("google")) as google:
        yield google


@pytest.fixture
def google(server: Google, monkeypatch: pytest.MonkeyPatch) -> Iterator[Google]:
    """A project whose runs bucket has been measured, and its data bucket has not."""
    lead_clients_to(server, monkeypatch)
    set_identity(server.cloud, Identity(project=PROJECT, zone="us-central1-b", principal=""))
    for api in ("monitoring", "artifactregistry"):
        enable(server.cloud, f"{api}.googleapis.com")
    _measured(server, "runs", "live-object", {1: 1.5e12, 25: 9e12})
    _measured(server, "runs", "soft-deleted-object", {1: 0.5e12})
    _measured(server, "data", "live-object", {24 * 7: 7e12})
    for name, size in (("oasis-docker", 12e9), ("oasis-python", 0), ("oasis-docker-remote", 99e9)):
        path = f"projects/{PROJECT}/locations/us-central1/repositories/{name}"
        server.cloud.put("artifactregistry/repository", path, {"name": path, "sizeBytes": str(int(size))})
    yield server
    (server.cloud.directory / "faults.json").unlink(missing_ok=True)


def _measured(google: Google, purpose: str, kind: str, bytes_by_age: dict[int, float]) -> None:
    points: list[dict[str, Any]] = []
    for hours, size in bytes_by_age.items():
        at = (NOW - timedelta(hours=hours)).isoformat()
        points.append({"interval": {"startTime": at, "endTime": at}, "value": {"doubleValue": size}})
    labels = {"bucket_name": f"{PROJECT}-oasis-{purpose}", "project_id": PROJECT}
    body = {
        "metric": {"type": kept.TOTAL_BYTES, "labels": {"type": kind, "storage_class": "STANDARD"}},
        "resource": {"type": "gcs_bucket", "labels": labels},
        "points": points,
    }
    google.cloud.put("monitoring/timeSeries", f"projects/{PROJECT}/timeSeries/{purpose}.{kind}", body)


def _lines(**config: Any) -> list[str]:
    return list(kept.lines(parse(from_config({**FULL, **config, "gcp:project": PROJECT})), NOW))


def test_what_stays_is_told_with_its_size_and_its_price_where_google_knows_them(google: Google) -> None:
    data, runs, registry, secret, rest, read = _lines(**changed("oasis:wandb", {"keep": True}))
    adopt = "; set adopt: true in its section for the next up"
    assert data == f"bucket {DATA} (oasis:data.keep), 0.02 USD a month for each GB{adopt}"  # measured too long ago
    assert runs == f"bucket {RUNS} (oasis:runs.keep), 2,000.0 GB: up to 40.00 USD a month{adopt}"
    assert registry.endswith(f"(oasis:registry.keep), 12.0 GB: up to 1.20 USD a month{adopt}")
    assert secret == f"secret oasis-wandb (oasis:wandb.keep), 0.06 USD a month for each active version{adopt}"
    assert "state bucket, 0.02 USD a month for each GB; and the encryption key, 0.06 USD a month for each" in rest
    assert read == "(list prices read from 2026-10-01 to 2026-11-28: oasis_stack/facts/prices.csv)"


def test_a_series_that_goes_on_on_the_next_page_counts_once(google: Google, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = kept.Google.list

    def in_parts(self: kept.Google, api: str, path: str, key: str, **parameters: str) -> Iterator[dict[str, Any]]:
        for one in whole(self, api, path, key, **parameters):
            yield from ({**one, "points": [point]} for point in one["points"]) if api == "monitoring" else [one]

    monkeypatch.setattr(kept.Google, "list", in_parts)
    assert "2,000.0 GB: up to 40.00 USD" in _lines()[1]


def test_a_price_is_the_regions_own_or_said_to_be_anothers(google: Google) -> None:
    elsewhere = {"oasis:region": "us-east4", "oasis:zone": "us-east4-b"}
    assert "2,000.0 GB: up to 46.00 USD a month;" in _lines(**elsewhere)[1]
    elsewhere = {"oasis:region": "asia-south1", "oasis:zone": "asia-south1-b"}
    assert "40.00 USD a month (in us-central1; asia-south1 is not in the table of prices);" in _lines(**elsewhere)[1]


def test_without_an_answer_the_price_of_each_gb_is_told_and_why(
    google: Google, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    google.cloud.delete("serviceusage/service", f"projects/{PROJECT}/services/monitoring.googleapis.com")
    _, runs, registry, *_, reason = _lines()
    assert "(oasis:runs.keep), 0.02 USD a month for each GB;" in runs and "12.0 GB" in registry
    assert reason.startswith("(sizes of buckets are not known: monitoring.googleapis.com is off in test-project")

    (google.cloud.directory / "faults.json").write_text('[{"effect": "delay", "seconds": 20}]')
    monkeypatch.setattr(kept, "PATIENCE_SECONDS", 0.5)
    began = time.monotonic()
    hanging = _lines()
    assert time.monotonic() - began < 15 and "has not answered within" in hanging[-1]

    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "none.json"))
    monkeypatch.setattr(kept, "PATIENCE_SECONDS", 10.0)
    assert _lines()[-1].startswith("(sizes of buckets and repositories are not known: no Google credentials")


def test_nothing_is_asked_where_nothing_is_kept_and_a_table_that_does_not_read_stops_no_destroy(
    google: Google, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = {f"oasis:{part}": {**FULL.get(f"oasis:{part}", {}), "keep": False} for part in ("data", "runs", "registry")}
    told, *_ = _lines(**{**gone, "oasis:data": {"keep": False, "soft_delete_days": 0}})
    assert told.startswith(
        f"what is in {RUNS} now, for 7 days (oasis:runs.soft_delete_days), 2,000.0 GB: up to 40.00 USD"
    )
    for part in ("data", "runs"):
        gone[f"oasis:{part}"]["soft_delete_days"] = 0
    assert _lines(**gone)[0].startswith("enabled Google APIs, at no cost")
    monkeypatch.setattr(prices, "FILE", tmp_path / "prices.csv")
    prices.FILE.write_text("nothing\n")
    prices.known.cache_clear()
    try:
        assert "(oasis:runs.keep), 2,000.0 GB; set adopt" in _lines()[1]
    finally:
        prices.known.cache_clear()
