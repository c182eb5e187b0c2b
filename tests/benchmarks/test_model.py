"""The comparison of engine and model: names that are made up are no difference, a field, an object or a run is."""

from __future__ import annotations

from pathlib import Path
from uuid import UUID

from benchmarks.model import Command, differences, drawn, fields
from emulator.google.cloud import Cloud


def lived(directory: Path, suffix: str, mtu: int, *more: str, budgets: int = 0) -> list[Command]:
    """A life after whose commands a network is there."""
    cloud = Cloud(directory)
    body = {"name": f"network-{suffix}", "mtu": mtu, "id": suffix}
    cloud.create("compute/network", f"projects/p/global/networks/network-{suffix}", body)
    for name in more:
        cloud.create("storage/bucket", name, {})
    for number in range(budgets):
        cloud.create("billingbudgets/budget", f"billingAccounts/a/budgets/{UUID(int=number)}", {})
    return [Command(["whole"], [fields(cloud)], []) for _ in range(3)]


def test_what_differs_is_told_by_field_object_and_run_and_what_is_made_up_is_not(tmp_path: Path) -> None:
    engine = lived(tmp_path / "engine", "0a1b2c3", 1460)
    assert list(differences(engine, lived(tmp_path / "equal", "3c2b1a0", 1460))) == []

    model = lived(tmp_path / "model", "3c2b1a0", 8896, "data")
    model[2].outcomes.insert(0, "killed")

    told = list(differences(engine, model))
    network = "compute/network projects/p/global/networks/network-*"
    assert told[:2] == [
        f"up, command 1, look 1: {network}: .mtu is 1460 with the engine, 8896 in the model",
        "up, command 1, look 1: storage/bucket data: 0 with the engine, 1 in the model",
    ]
    assert "destroy, command 3: the engine's runs were ['whole'], the model's ['killed', 'whole']" in told


def test_a_budget_more_is_a_difference_unless_a_run_was_killed(tmp_path: Path) -> None:
    engine, model = (lived(tmp_path / str(budgets), "0a1b2c3", 1460, budgets=budgets) for budgets in (1, 2))
    assert len(list(differences(engine, model))) == 3
    for life in (engine, model):
        life[1].outcomes.insert(0, "killed")
    (told,) = differences(engine, model)
    assert (
        told
        == "up, command 1, look 1: billingbudgets/budget billingAccounts/a/budgets/*: 1 with the engine, 2 in the model"
    )


def test_the_schedules_have_every_cut_and_leftovers_shorter_and_longer_than_the_waits() -> None:
    schedules = [drawn(1, number) for number in range(30)]
    assert schedules == [drawn(1, number) for number in range(30)]
    assert {cut and cut[1] for one in schedules for cut in one.cuts} == {None, "lost", "killed before", "killed after"}
    assert min(one.minutes for one in schedules) <= 20 and max(one.minutes for one in schedules) > 30
