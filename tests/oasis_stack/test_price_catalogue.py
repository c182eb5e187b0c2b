"""`make prices`, against the emulated Google with a catalogue that has every trap that is known of the real one.

The descriptions are those that public readers of the catalogue and of bills match; the prices are made up.
"""

from __future__ import annotations

import csv
import shutil
from collections.abc import Iterator
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from oasis_stack.command_line import price_catalogue, stack_file
from oasis_stack.command_line.external_program import ProgramError
from oasis_stack.command_line.stack_file import ROOT
from oasis_stack.settings.settings import from_config, parse
from tests.emulator.google import PROJECT, Google, lead_clients_to, served
from tests.support.stacks import changed

TODAY = date(2026, 12, 1)
STACK = changed("gcp:project", PROJECT)

H200 = {  # listed, flex-start, Spot
    "H200 141GB GPU running in Americas": 10.0,
    "H200 141GB GPU attached to DWS Defined Duration VMs running in Americas": 5.0,
    "H200 141GB GPU attached to Spot Preemptible VMs running in Americas": 6.0,
}
HOSTS = {
    "A3Ultra Instance Core running in Americas": 0.02,
    "A3 Ultra Instance Ram running in Americas": 0.002,
    "DWS Defined Duration A3Ultra Core running in Americas": 0.01,
    "DWS Defined Duration A3 Ultra Instance Ram": 0.001,
    "Spot Preemptible A3Ultra Instance Core running in Americas": 0.012,
    "Spot Preemptible A3Ultra Instance Ram running in Americas": 0.0012,
    "E2 Instance Core running in Americas": 0.022,
    "E2 Instance Ram running in Americas": 0.003,
}
LOCAL_SSD = {
    "SSD backed Local Storage": ("GiBy.mo", 0.073),  # 0.0001 an hour
    "DWS Defined Duration SSD backed Local Storage running in Americas": ("GiBy.h", 0.0001),
    "SSD backed Local Storage attached to Spot Preemptible VMs": ("GiBy.mo", 0.0365),
}
TRAPS = {
    "Reserved H200 141GB GPU in Iowa in Calendar Mode": 7.0,
    "Premium for H200 141GB GPU running in Americas": 0.5,
    "A3 Instance Core running in Americas": 0.9,  # A3 High
    "A3Plus Instance Core running in Americas": 0.9,
    "E2 Custom Instance Core running in Americas": 0.9,
    "Commitment v1: E2 Instance Core running in Americas for 1 Year": 0.9,
    "DWS Calendar Mode A3Ultra Core": 0.9,
    "Spot Preemptible E2 Instance Ram running in Americas": 0.9,
}

NODES = {  # 8 GPUs, 224 vCPUs, 2,952 GiB and 32 local SSDs of 375 GB
    "a3-ultragpu-8g, reservation": 8 * 10 + 224 * 0.02 + 2952 * 0.002 + 12_000 * 0.0001,
    "a3-ultragpu-8g, flex-start": 8 * 5 + 224 * 0.01 + 2952 * 0.001 + 12_000 * 0.0001,
    "a3-ultragpu-8g, spot": 8 * 6 + 224 * 0.012 + 2952 * 0.0012 + 12_000 * 0.00005,
    "e2 vCPU": 0.022,
    "e2 GiB": 0.003,
}


def sku(description: str, usd: float, unit: str = "h", regions: tuple[str, ...] = ("us-central1",)) -> dict[str, Any]:
    """A row as the REST reference has it, its price behind a free tier of 0 units."""
    amount = {"currencyCode": "USD", "units": str(int(usd)), "nanos": round(usd % 1 * 1e9)}
    tiers = [{"startUsageAmount": 0, "unitPrice": {"units": "0", "nanos": 0}}, {"unitPrice": amount}]
    usage = "Preemptible" if description.startswith("Spot") or "to Spot" in description else "OnDemand"
    return {
        "description": description,
        "category": {"usageType": "OnDemand" if "Local Storage" in description else usage},
        "serviceRegions": list(regions),
        "pricingInfo": [{"pricingExpression": {"usageUnit": unit, "tieredRates": tiers}}],
    }


CATALOGUE = [
    *(sku(words, usd, "GiBy.h" if "Ram" in words else "h") for words, usd in {**H200, **HOSTS, **TRAPS}.items()),
    *(sku(words, usd, unit) for words, (unit, usd) in LOCAL_SSD.items()),
    sku("H200 141GB GPU running in Dallas", 99.0, regions=("us-south1",)),
    sku("H200 141GB GPU running in Iowa", 0.0),
    sku("E2 Instance Core running in Iowa", 1.0, unit="{instance}.h"),
]


@pytest.fixture
def google(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Google]:
    with served(tmp_path / "google") as google:
        lead_clients_to(google, monkeypatch)
        yield google


def put(google: Google, rows: list[dict[str, Any]]) -> None:
    with google.cloud.transaction():
        for number, row in enumerate(rows):
            name = f"services/{price_catalogue.COMPUTE_ENGINE}/skus/{number}"
            google.cloud.put("cloudbilling/sku", name, {**row, "skuId": str(number)})


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """The first table of prices."""
    return Path(shutil.copy(ROOT / "tests" / "support" / "prices.csv", tmp_path))


def rows(table: Path) -> dict[tuple[str, str], dict[str, str]]:
    return {(row["what"], row["region"]): row for row in csv.DictReader(table.read_text().splitlines())}


def refresh(table: Path, config: dict[str, Any] = STACK) -> str:
    said: list[str] = []
    price_catalogue.refresh(parse(from_config(config)), TODAY, said.append, table)
    return "\n".join(said)


def test_the_catalogue_s_prices_of_a_stack_s_nodes_are_written_and_all_others_stay(google: Google, table: Path) -> None:
    put(google, CATALOGUE)
    before = rows(table)

    said = refresh(table)

    after = rows(table)
    for what, usd in NODES.items():
        row = after.pop((what, "us-central1"))
        assert float(row["usd"]) == pytest.approx(usd, abs=1e-6), what
        assert (row["read"], row["source"]) == ("2026-12-01", "Cloud Billing catalogue")
        assert f"{what}: {usd:.4f} USD an hour, was " in said
        del before[what, "us-central1"]
    assert after == before


def test_what_the_catalogue_does_not_have_or_has_twice_stays_and_is_told(google: Google, table: Path) -> None:
    doubtful = [sku("E2 Instance Core running in Iowa", 0.03)]
    put(google, [row for row in CATALOGUE if "DWS Defined Duration A3Ultra" not in row["description"]] + doubtful)
    before = rows(table)

    said = refresh(table)

    flex, cpu = ("a3-ultragpu-8g, flex-start", "us-central1"), ("e2 vCPU", "us-central1")
    assert (rows(table)[flex], rows(table)[cpu]) == (before[flex], before[cpu])
    assert "flex-start: the catalogue has no price for" in said and "stays 42.4000 of 2026-10-01" in said
    assert "e2 vCPU: the catalogue has 2 prices for" in said


def test_a_region_without_prices_gets_its_own(google: Google, table: Path) -> None:
    there = [{**row, "serviceRegions": ["us-east5"]} for row in CATALOGUE]
    put(google, there)

    said = refresh(table, {**STACK, "oasis:region": "us-east5", "oasis:zone": "us-east5-a"})

    assert float(rows(table)["a3-ultragpu-8g, spot", "us-east5"]["usd"]) == pytest.approx(NODES["a3-ultragpu-8g, spot"])
    assert "spot: 54.8304 USD an hour, new" in said


def test_a_catalogue_that_answers_nothing_or_not_changes_nothing_and_says_what_to_do(
    google: Google, table: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = table.read_text()

    with pytest.raises(ProgramError, match="has no prices"):
        refresh(table)
    monkeypatch.setenv("CLOUDSDK_API_ENDPOINT_OVERRIDES_CLOUDBILLING", "http://127.0.0.1:1/")
    with pytest.raises(
        ProgramError, match=r"does not answer[^`]*`gcloud services enable cloudbilling\.googleapis\.com"
    ):
        refresh(table)
    assert table.read_text() == before


def test_a_table_that_cannot_be_written_is_named_and_stays(
    google: Google, table: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path, text: str) -> None:
        raise OSError("No space left on device")

    put(google, CATALOGUE)
    monkeypatch.setattr(stack_file, "replace", full)
    with pytest.raises(ProgramError, match=r"facts/prices\.csv cannot be written: No space .*free some space"):
        refresh(table)
