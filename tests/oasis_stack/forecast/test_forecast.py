"""`python -m oasis_stack forecast` and its place in `plan` and `preflight`, against the emulated Google over HTTP."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator, Mapping
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml

from emulator.google.callers import Identity, set_identity
from oasis_stack import __main__ as command_line
from oasis_stack import live_state
from oasis_stack.forecast import advice, ladder, report
from oasis_stack.preflight import quotas
from oasis_stack.preflight.google import Google as Questions
from oasis_stack.settings.quota import of_gpus
from oasis_stack.settings.settings import from_config, parse
from tests.emulator.google import Google, enable, grant, lead_clients_to, served
from tests.support.stacks import FULL, changed

CALLER = "user:reader@example.com"
PROJECT = FULL["gcp:project"]
ROLES = ("compute.viewer", "compute.futureReservationUser", "cloudquotas.viewer")
LADDER = [{"mode": "flex-start", "max_nodes": 4}, {"mode": "spot", "max_nodes": 2}]
CONFIG = changed("oasis:gpu.capacity", LADDER)
ELSEWHERE = (
    "asia-south1-b",
    "asia-south2-c",
    "europe-west1-b",
    "us-east4-b",
    "us-east5-a",
    "us-south1-b",
    "us-west1-c",
)
CAPACITY = {
    "us-central1-b/spot": 1,
    "us-central1-b/reservation": 0,
    "europe-west4-a/spot": 2,
    **{f"{zone}/spot": 0 for zone in ELSEWHERE},
}
SPOT = "2. gpu-spot: 1 node likely (1), lasting 60 min or more; 2 nodes as likely as not (0.5), lasting 1 min or more"
WORSE = ", ".join(f"{zone} 0" for zone in ELSEWHERE)
QUOTA = "us-central1/PREEMPTIBLE_NVIDIA_H200_GPUS"


@pytest.fixture(scope="module")
def served_google(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Google]:
    with served(tmp_path_factory.mktemp("google")) as google:
        for api in ("compute", "cloudquotas"):
            enable(google.cloud, f"{api}.googleapis.com", PROJECT)
        yield google


class Stack:
    """A stack file of the emulated cloud, and what its commands say."""

    def __init__(self, google: Google, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.google, self.folder, self._capsys = google, folder, capsys
        self.limits(CAPACITY)
        self.roles(*ROLES)
        self.write(CONFIG)

    def write(self, config: Mapping[str, Any], name: str = "local") -> None:
        (self.folder / f"Pulumi.{name}.yaml").write_text(yaml.safe_dump({"config": dict(config)}))

    def limits(self, capacity: Mapping[str, int]) -> None:
        content = {"capacity": capacity, "quotas": {QUOTA: 40}}
        (self.google.cloud.directory / "limits.json").write_text(json.dumps(content))

    def roles(self, *roles: str) -> None:
        held = [f"roles/{role}" for role in roles]
        grant(self.google.cloud, CALLER, "cloudresourcemanager", f"projects/{PROJECT}", held)
        set_identity(self.google.cloud, Identity(project=PROJECT, zone="us-central1-b", principal=CALLER))

    def faults(self, *faults: Mapping[str, Any]) -> None:
        (self.google.cloud.directory / "faults.json").write_text(json.dumps(faults))

    def say(self, *words: str) -> list[str]:
        """What a command says, which succeeds."""
        assert command_line.main(words, self.folder) == 0
        return self._capsys.readouterr().out.splitlines()

    def forecast(self, *words: str) -> list[str]:
        """The lines of a forecast."""
        head, *lines = self.say("forecast", "--stack", "local", *words)
        assert head.startswith("Forecast of a3-ultragpu-8g in us-central1-b")
        return [line.removeprefix("  ") for line in lines]

    def age(self, age: timedelta) -> None:
        """Have what is kept be that old."""
        file = self.folder / ".oasis" / "forecast" / "local.json"
        moment = (datetime.now(UTC) - age).isoformat()
        kept = {name: {**answer, "asked": moment} for name, answer in json.loads(file.read_text()).items()}
        file.write_text(json.dumps(kept))


@pytest.fixture
def stack(
    served_google: Google, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Stack]:
    lead_clients_to(served_google, monkeypatch)
    monkeypatch.setattr(report, "SECONDS", 300.0)  # beside other tests
    yield Stack(served_google, tmp_path, capsys)
    (served_google.cloud.directory / "faults.json").unlink(missing_ok=True)


def sign_out(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(folder / "none.json"))


@pytest.mark.thorough
def test_a_ladder_of_spot_and_flex_start_is_told_with_its_history_windows_quota_and_better_place(stack: Stack) -> None:
    said = stack.forecast()

    asked = re.fullmatch(r"asked at (\S+) \S+ UTC: what Google expects now, not a promise", said[-1])
    assert asked
    today = date.fromisoformat(asked[1])
    yesterday, price_day, year_day = (f"{today - timedelta(days=days)}" for days in (1, 100, 365))
    rates = [(today - timedelta(days=days)).day for days in range(1, 31)]
    assert said[:-1] == [
        "1. gpu-flex-start: Google gives no forecast of flex-start for a3-ultragpu-8g (it documents Spot only)",
        SPOT,
        f"   of the nodes that ended on {yesterday}, Google took back {rates[0]}%; "
        f"{min(rates)}% to {max(rates)}% a day in 30 days",
        f"   list price 24.50 USD a node and hour since {price_day}, and 20.50 on {year_day}",
        "to reserve in calendar mode, 4 nodes: 1 day: none within 60 days (NO_CAPACITY); 7 days: none within 60 days "
        "(NO_CAPACITY)",
        "quota left of PREEMPTIBLE-NVIDIA-H200-GPUS-per-project-region: 40 of 40 GPUs, so 5 nodes "
        "(flex-start, queued and Spot)",
        f"2 nodes by gpu-spot elsewhere: europe-west4-a 1, {WORSE}: likelier in europe-west4-a, in a stack of its own",
        "proposed order, by the price of an hour of progress: gpu-spot, gpu-flex-start (now: gpu-flex-start, gpu-spot)",
    ]


def test_spot_nodes_that_are_gone_in_a_minute_come_last_and_windows_are_named(stack: Stack) -> None:
    stack.write(changed("oasis:gpu.capacity", LADDER[::-1]))
    stack.limits({**CAPACITY, "us-central1-b/spot": 0, "us-central1-b/reservation": 4})
    tomorrow = f"{datetime.now(UTC) + timedelta(days=1):%Y-%m-%d}"

    said = stack.forecast()

    assert (
        "1. gpu-spot: 1 node unlikely (0), lasting 1 min or more; 2 nodes unlikely (0), lasting 1 min or more" in said
    )
    assert (
        f"to reserve in calendar mode, 4 nodes: 1 day from {tomorrow} 00:00 UTC in us-central1-b; "
        f"7 days from {tomorrow} 00:00 UTC in us-central1-b"
    ) in said
    assert "proposed order, by the price of an hour of progress: gpu-flex-start, gpu-spot (now: gpu-spot, " in said[-2]


def test_a_job_is_told_of_the_rungs_that_it_may_get_for_as_many_nodes_as_it_asks_for(stack: Stack) -> None:
    stack.write(changed("oasis:gpu.capacity", [*LADDER, {"mode": "queued", "max_nodes": 2}]))
    stack.limits({**CAPACITY, "us-central1-b/spot": 2})
    assert f"2 nodes by gpu-spot elsewhere: europe-west4-a 1, {WORSE}: likelier nowhere" in stack.forecast()
    brief = stack.forecast("--brief", "--job", "queue", "--nodes", "2")
    assert brief[0].startswith("1. gpu-queued: Google gives no forecast of queued for a3-ultragpu-8g")
    assert len(brief) == 2 and brief[1].startswith("asked at ")
    ladder_alone = stack.forecast("--brief", "--job", "ladder", "--nodes", "1")
    assert ladder_alone[1] == "2. gpu-spot: 1 node likely (1), lasting 60 min or more"
    stack.write(changed("oasis:gpu", None))
    assert stack.say("forecast", "--stack", "local") == ["local has no gpu section, so there is nothing to forecast"]


@pytest.mark.parametrize(
    ("age", "word"), [(timedelta(hours=3), "(3 h ago)"), (timedelta(days=2), "(2 d ago: too old to go by)")]
)
def test_without_credentials_the_last_answers_are_shown_with_their_age(
    stack: Stack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, age: timedelta, word: str
) -> None:
    stack.forecast()
    stack.age(age)
    sign_out(monkeypatch, tmp_path)

    said = stack.forecast()

    told = "\n".join(said)
    assert f"1 node likely (1), lasting 60 min or more {word}; 2 nodes as likely as not (0.5)" in told
    assert f"in 30 days {word}" in told and f"europe-west4-a 1 {word}" in told and f"and Spot) {word}" in told
    assert said[-1].startswith("Google was asked nothing: no Google credentials: ") and ".." not in said[-1]
    assert said[-1].endswith("Run `gcloud auth application-default login`.")
    # Google's price of Spot nodes decides while it is young; else the committed one, which is above flex-start's.
    assert ("the ladder's order is the proposed one, by the price of an hour of progress" in said) == (age.days > 0)


def test_a_plan_without_credentials_or_answers_says_so_and_goes_on(
    stack: Stack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sign_out(monkeypatch, tmp_path)
    said = stack.say("plan", "--stack", "local")
    start = said.index("Forecast of a3-ultragpu-8g in us-central1-b; Google is given 5 s to answer")
    assert said[start - 2].endswith("come on top.")
    assert said[start + 1].startswith("  the ladder's order is the proposed one")
    assert said[start + 2].startswith("  Google was asked nothing: no Google credentials")
    assert said[start + 4].startswith("Resources: ")
    assert not (tmp_path / ".oasis").exists()


@pytest.mark.thorough
def test_a_plan_in_a_shell_of_the_emulated_cloud_asks_it_nothing_about_another_stack(stack: Stack) -> None:
    stack.write(CONFIG, "mine")
    said = "\n".join(stack.say("plan", "--stack", "mine"))
    assert "not asked: this shell is of the emulated cloud, whose stack is local" in said


def test_an_api_that_is_off_is_said_once(stack: Stack) -> None:
    name = f"projects/{PROJECT}/services/compute.googleapis.com"
    stack.google.cloud.delete("serviceusage/service", name)
    try:
        said = stack.forecast()
    finally:
        enable(stack.google.cloud, "compute.googleapis.com", PROJECT)
    told = [line for line in said if "not answered" in line]
    enables = f"`gcloud services enable compute.googleapis.com --project {PROJECT}`, and ask again."
    assert len(told) == 1 and told[0].endswith(enables)
    count, total = re.findall(r"\d+", told[0])[:2]
    assert count == total


def test_a_right_that_is_missing_hides_what_it_is_needed_for_alone(stack: Stack) -> None:
    stack.roles("compute.viewer", "cloudquotas.viewer")
    said = stack.forecast()
    assert SPOT in said
    assert said[-1].startswith("2 of 25 questions not answered: compute.googleapis.com answers 403: ")
    assert said[-1].endswith("Ask for the permission compute.advice.calendarMode.")


def test_of_a_quota_whose_use_nobody_tells_nothing_is_said_to_be_left_and_no_nodes_are_fewer_than_none(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    reserved = {"mode": "reservation", "max_nodes": 2, "reservation": "ours"}
    config = changed("oasis:gpu.capacity", [reserved, *LADDER])
    stack.write(config)
    preemptible, family, _ = of_gpus(parse(from_config(config)))
    held = [
        quotas.Held(quota=preemptible, said={"Compute Engine": 8.0}, used=24.0),
        quotas.Held(quota=family, said={"Cloud Quotas": 16.0}, used=None),
    ]
    monkeypatch.setattr(quotas, "left", lambda settings, google: held)

    said = stack.forecast()

    assert f"quota left of {preemptible.called}: 0 of 8 GPUs, so 0 nodes (flex-start, queued and Spot)" in said
    assert (
        "quota of GPUS-PER-GPU-FAMILY-per-project-region, gpu_family=NVIDIA_H200: 16 GPUs; how many are in use is not "
        "known, so at most 2 nodes (reservation and on-demand)"
    ) in said


def test_what_has_not_come_in_time_is_said_and_not_waited_for(
    stack: Stack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, find = threading.Event(), live_state.google_credentials
    monkeypatch.setattr(live_state, "google_credentials", lambda project: asked.wait(60) and find(project))
    stack.faults({"call": "compute.advice.capacityHistory", "effect": "delay", "seconds": 600})
    subject = ladder.of(parse(from_config(CONFIG)))
    assert subject
    google = Questions(PROJECT)
    said = report.lines(subject, google, tmp_path / "kept.json", 0)
    unfound = (
        "Google was asked nothing: no Google credentials were found within 0 s. Run `gcloud auth application-default"
    )
    assert said[-1].startswith(unfound)
    asked.set()
    google.get("compute", f"projects/{PROJECT}")
    said = report.lines(subject, google, tmp_path / "kept.json", 1)
    late = re.fullmatch(r"(\d+) of 25 questions not answered within 1 s: ask again", said[-1])
    assert late and int(late[1]) >= 2
    assert not [line for line in said if "took back" in line or "list price" in line]


def test_preflight_shows_it_as_what_nothing_depends_on(stack: Stack, capsys: pytest.CaptureFixture[str]) -> None:
    command_line.main(["preflight", "--stack", "local"], stack.folder)
    said = capsys.readouterr().out.splitlines()
    section = said[said.index("Forecast") + 1 : said.index("", said.index("Forecast"))]
    assert len(section) == 9 and all(line.startswith("  -   ") for line in section), section


def test_what_is_kept_is_the_users_alone_and_may_be_spoilt(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    stack.forecast()
    file = stack.folder / ".oasis" / "forecast" / "local.json"
    assert file.stat().st_mode & 0o777 == 0o600 and file.parent.stat().st_mode & 0o077 == 0
    whole = stack.forecast()
    file.write_text("[1]")
    assert stack.forecast()[:-1] == whole[:-1]
    spoilt = {name: {**answer, "content": [{"x": 1}]} for name, answer in json.loads(file.read_text()).items()}
    file.write_text(json.dumps(spoilt))
    sign_out(monkeypatch, stack.folder)
    assert [line for line in stack.forecast() if "likely" in line or "quota" in line] == []


@pytest.mark.parametrize("answer", [None, {}, [], {"recommendations": []}, {"recommendations": [{"scores": {}}]}])
def test_an_answer_that_says_nothing_or_in_an_unknown_form_is_none(answer: Any) -> None:
    readers = (advice.chance, advice.preemption_rates, advice.price_history, advice.window)
    assert [advice.read(reader, answer) for reader in readers] == [None] * 4
