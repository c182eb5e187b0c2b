"""What is said of the engine's events: each finished resource, and of a preview what would be done and what differs."""

from __future__ import annotations

from typing import Any

import pytest
from pulumi.automation.events import EngineEvent

from emulator.engine import events as engine_events
from emulator.engine.events import Progress

URN = "urn:pulumi:local::oasis::oasis:index:Bucket$gcp:storage/bucket:Bucket::runs"
OLD = {"labels": {"a.b/c": "x", "gone": "y"}, "rules": [{"age": 1}], "key": "[secret]", "location": "us-central1"}
NEW = {
    "labels": {"a.b/c": "z", "come": 1},
    "rules": [{"age": 2}],
    "key": "[secret]",
    "location": "04da6b54-80e4-46f7-96ec-b56ff0331ba9",
}
DIFFERENCE = {
    'labels["a.b/c"]': "update",
    "labels.gone": "delete",
    "labels.come": "add",
    "rules[0].age": "update",
    "key": "update",
    "location": "update-replace",
}


def lines(op: str, preview: bool, **metadata: Any) -> list[str]:
    """What is said of one resource, without the time."""
    said: list[str] = []
    step = {"op": op, "urn": URN, "type": "gcp:storage/bucket:Bucket", "provider": "p", **metadata}
    Progress(said.append, preview=preview).heard(EngineEvent.from_json({"resOutputsEvent": {"metadata": step}}))
    return [line.partition(" s  ")[2] or line.strip() for line in said]


def state(inputs: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"type": "t", "urn": URN, "id": "i", "parent": "", "provider": "p", "inputs": inputs, "outputs": {}, **more}


@pytest.mark.parametrize(
    ("op", "done", "foreseen"),
    [
        ("create", "created", "would create"),
        ("update", "updated", "would update"),
        ("delete", "deleted", "would delete"),
        ("replace", "replaced", "would replace"),
        ("import", "adopted", "would adopt"),
    ],
)
def test_a_preview_does_not_say_that_anything_was_done(op: str, done: str, foreseen: str) -> None:
    assert lines(op, preview=False) == [f"{done:<16} Bucket runs"]
    assert lines(op, preview=True) == [f"{foreseen:<16} Bucket runs"]


def test_what_a_provider_says_of_a_resource_is_told_unless_it_is_of_the_moment() -> None:
    said: list[str] = []
    for number, ephemeral in enumerate((False, True)):
        told = {"message": f"[{number}]", "color": "never", "severity": "info", "ephemeral": ephemeral, "urn": URN}
        Progress(said.append, preview=False).heard(EngineEvent.from_json({"diagnosticEvent": told}))
    assert [line.partition(" s  ")[2] for line in said] == ["Bucket runs: [0]"]


class Told(Exception):
    """Ends what would not return."""


def test_a_run_of_which_nothing_is_said_is_said_to_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    def tell(line: str) -> None:
        raise Told(line)

    monkeypatch.setattr(engine_events, "_SILENCE_SECONDS", 0.0)
    progress = Progress(tell)
    step = {"op": "same", "urn": URN, "type": "gcp:storage/bucket:Bucket", "provider": "p"}
    progress.heard(EngineEvent.from_json({"resOutputsEvent": {"metadata": step}}))
    with pytest.raises(Told, match="goes on; resources so far: 1"):
        progress.keep_telling()


def test_what_is_kept_is_neither_said_to_be_deleted_nor_counted_so() -> None:
    old = state({}, retainOnDelete=True)
    assert lines("delete", preview=False, old=old) == [f"{'kept':<16} Bucket runs"]
    assert lines("delete", preview=True, old=old) == [f"{'would keep':<16} Bucket runs"]
    assert lines("delete", preview=False, old=old, provider="") == []  # the component round it, of the same name

    progress = Progress(lambda line: None)
    for number in range(3):
        step = {"op": "delete", "urn": f"{URN}{number}", "type": "t", "provider": "p", "old": old if not number else {}}
        progress.heard(EngineEvent.from_json({"resOutputsEvent": {"metadata": step}}))
    summary = {"maybeCorrupt": False, "durationSeconds": 1, "PolicyPacks": {}, "resourceChanges": {"delete": 3}}
    progress.heard(EngineEvent.from_json({"summaryEvent": summary}))
    assert progress.changes == {"delete": 2, "kept": 1}


def test_a_preview_shows_each_property_that_differs() -> None:
    detailed = {path: {"diffKind": kind, "inputDiff": True} for path, kind in DIFFERENCE.items()}

    said = lines("update", preview=True, old=state(OLD), new=state(NEW), detailedDiff=detailed)

    assert set(said[1:]) == {
        '~ labels["a.b/c"]: "x" -> "z"',
        '- labels.gone: "y"',
        "+ labels.come: 1",
        "~ rules[0].age: 1 -> 2",
        '~ key: "[secret]" -> "[secret]"',
        '~ location: "us-central1" -> (known after up), which replaces it',
    }


def test_a_difference_that_the_provider_does_not_detail_is_found_in_the_inputs() -> None:
    said = lines("update", preview=True, old=state({"a": 1, "b": 1}), new=state({"a": "x" * 100, "b": 1}))

    assert said[1:] == [f'~ a: 1 -> "{"x" * 59}...']
