"""The two stack files are legal and complete, and one value can be set in a stack file without touching the rest."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from functools import partial
from pathlib import Path

import pytest
import yaml

from oasis_stack.command_line import plan, stack_file
from oasis_stack.command_line.stack_file import StackFileError, fill, set_value
from oasis_stack.settings.settings import from_config, parse
from tests.support.program import deploy_stack

POOL = "gcp:container/nodePool:NodePool"
IMAGE = ("config", "oasis:ray", "image")
DIGEST = "us-central1-docker.pkg.dev/p/oasis/ray@sha256:" + "0a" * 32


@pytest.fixture
def stack(tmp_path: Path) -> Path:
    """A copy of Pulumi.dev.yaml."""
    return Path(shutil.copy(stack_file.find("dev"), tmp_path))


def written(directory: Path, text: str) -> Path:
    path = directory / "Pulumi.some.yaml"
    path.write_bytes(text.encode())
    return path


def test_the_dev_stack_shows_every_setting_but_those_that_are_written_into_it() -> None:
    config = stack_file.config(stack_file.find("dev"))
    values = from_config(config | {"gcp:project": "some-project"})

    shown = plan.effective(parse(values), values)

    # What init and image write, what another setting decides, and what its comments explain.
    left_out = {
        "oasis:state_backend",
        "oasis:ray.image",
        "oasis:wandb_api_key",
        "oasis:gpu.compute_class",
        "oasis:gpu.queue_chart",
        "oasis:cluster.authorized_networks",
        "oasis:cluster.secrets_encryption_key",
        "oasis:cluster.security_group",
        "oasis:cluster.maintenance_exclusion.end",
        "oasis:ray.dashboard_client_ranges",
        "oasis:ray.operator_repository",
        "oasis:registry.docker_hub",
        "oasis:teams",
        "oasis:cost.max_hourly_usd",
        "oasis:cost.billing_account",
        "oasis:cost.monthly_usd",
        *(
            f"oasis:gpu.capacity[{index}].{field}"
            for index in range(3)
            for field in ("reservation", "compact_placement")
        ),
        "oasis:gpu.capacity[1].max_run_duration_hours",
    }
    assert {key for key, _, origin in shown if origin == "default"} == left_out
    text = stack_file.find("dev").read_text()
    assert "gcp:project" not in config
    assert all(word in text for word in ("mode: reservation", "authorized_networks:", "dashboard_client_ranges:"))


def test_the_local_stack_is_the_h200_stack_with_every_component() -> None:
    local = parse(from_config(stack_file.config(stack_file.find("local"))))

    assert local.project == "oasis-local"
    assert local.gpu is not None and local.gpu.machine.rdma_nics == 8
    assert [entry.mode for entry in local.gpu.capacity] == ["flex-start", "spot", "queued"]
    assert local.build is not None and local.wandb is not None
    assert (local.cluster.endpoint, local.cluster.authorized_networks[0].cidr) == ("ip", "127.0.0.1/32")


@pytest.mark.thorough
def test_the_dev_stack_has_every_type_of_resource_that_the_local_one_has_and_no_other() -> None:
    dev, local = (
        Counter(found.type for found in deploy_stack(stack_file.config(stack_file.find(name)) | given))
        for name, given in (("dev", {"gcp:project": "some-project"}), ("local", {}))
    )

    assert dev.keys() == local.keys()
    # Whoever copies it gets the platform that every test here runs on, but for rungs of the ladder.
    assert {kind for kind in dev if dev[kind] != local[kind]} <= {POOL, "oasis:index:GpuNodePool"}


def test_setting_the_image_adds_one_line_changing_it_changes_that_line_and_doing_so_again_nothing(stack: Path) -> None:
    before = stack.read_text().splitlines()

    assert set_value(stack, IMAGE, DIGEST)
    once = stack.read_text().splitlines()
    assert set_value(stack, IMAGE, DIGEST.replace("0a", "0b"))
    twice = stack.read_text().splitlines()

    assert set(once) - set(before) == {f"    image: {DIGEST}"} and len(once) == len(before) + 1
    assert [line for line in once if line in before] == before
    assert [old == new for old, new in zip(once, twice, strict=True)].count(False) == 1
    assert yaml.safe_load(stack.read_text())["config"]["oasis:ray"]["image"].endswith("0b" * 32)
    assert list(stack.parent.iterdir()) == [stack]

    written_at = stack.stat().st_mtime_ns
    assert not set_value(stack, IMAGE, DIGEST.replace("0a", "0b"))
    assert (stack.stat().st_mtime_ns, stack.read_text().splitlines()) == (written_at, twice)


def test_filling_in_never_overwrites(stack: Path) -> None:
    assert fill(stack, ("config", "gcp:project"), "mine-12345")
    assert not fill(stack, ("config", "gcp:project"), "other-12345")
    assert not fill(stack, ("config", "oasis:region"), "us-east4")
    assert stack_file.config(stack)["gcp:project"] == "mine-12345"
    assert stack_file.config(stack)["oasis:region"] == "us-central1"


# A stack file before, and what setting oasis:ray.image to `a/b:c` makes of it.
EDITS = {
    "empty section in braces": (
        "config:\n  oasis:ray: {} # later\n  x: 1\n",
        "config:\n  oasis:ray: # later\n    image: a/b:c\n  x: 1\n",
    ),
    "no section": ("config:\n  x: 1\n\n# end\n", "config:\n  x: 1\n  oasis:ray:\n    image: a/b:c\n\n# end\n"),
    "no config": (
        "encryptionsalt: v1:abc\n",
        "encryptionsalt: v1:abc\nconfig:\n  oasis:ray:\n    image: a/b:c\n",
    ),
    "comment behind the value": (
        "config:\n  oasis:ray:\n    image: old # mine\n",
        "config:\n  oasis:ray:\n    image: a/b:c # mine\n",
    ),
    "value in quotes": (
        "config:\n  'oasis:ray':\n    \"image\": 'old # x'\n",
        "config:\n  'oasis:ray':\n    \"image\": a/b:c\n",
    ),
    "four spaces": (
        "config:\n    oasis:ray:\n        version: 2\n    x: 1\n",
        "config:\n    oasis:ray:\n        version: 2\n        image: a/b:c\n    x: 1\n",
    ),
    "the same key elsewhere": (
        "config:\n  y:\n    image: no\n  oasis:ray:\n    z:\n      image: no\n",
        "config:\n  y:\n    image: no\n  oasis:ray:\n    z:\n      image: no\n    image: a/b:c\n",
    ),
    "no end of line at the end": ("config:\n  x: 1", "config:\n  x: 1\n  oasis:ray:\n    image: a/b:c\n"),
    "line ends of Windows": (
        "config:\r\n  x: 1\r\n",
        "config:\r\n  x: 1\r\n  oasis:ray:\r\n    image: a/b:c\r\n",
    ),
    "empty file": ("", "config:\n  oasis:ray:\n    image: a/b:c\n"),
}


@pytest.mark.parametrize("case", EDITS)
def test_an_edit_touches_one_value_however_the_file_is_written(case: str, tmp_path: Path) -> None:
    before, after = EDITS[case]
    path = written(tmp_path, before)

    assert set_value(path, IMAGE, "a/b:c")

    assert path.read_bytes().decode() == after


@pytest.mark.parametrize(
    "text",
    [
        "config: {oasis:ray: {image: old}}\n",
        "config:\n  oasis:ray: {version: 2.60.0}\n",
        "config:\n  oasis:ray:\n    image: |\n      old\n",
        "base: &ray\n  image: old\nconfig:\n  oasis:ray: *ray\n",
    ],
)
def test_a_file_that_cannot_be_edited_line_by_line_is_left_as_it_was(text: str, tmp_path: Path) -> None:
    path = written(tmp_path, text)

    with pytest.raises(StackFileError, match="by hand"):
        set_value(path, IMAGE, "a/b:c")

    assert path.read_text() == text
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("value", ["true", "1.5", "a: b", "#x", 'say "hi"', "2027-01-01", "ünicode", "- x", "a\nb"])
def test_a_value_is_read_back_as_the_text_it_is(value: str, tmp_path: Path) -> None:
    path = written(tmp_path, "config:\n  o:x: 1\n")

    set_value(path, ("config", "o:y"), value)

    assert stack_file.config(path) == {"o:x": 1, "o:y": value}


def test_scalars_are_read_as_pulumi_reads_them(tmp_path: Path) -> None:
    scalars = {
        "yes": "yes",
        "2027-01-31": "2027-01-31 00:00:00 +0000 UTC",
        "true": True,
        "True": True,
        "FALSE": False,
        "truenorth": "truenorth",
        "false-start": "false-start",
        "1.35": 1.35,
        '"1.35"': "1.35",
    }
    path = written(tmp_path, "config:\n  o:x:\n" + "".join(f"    - {scalar}\n" for scalar in scalars))

    assert stack_file.config(path) == {"o:x": [*scalars.values()]}


def test_a_date_without_quotes_is_the_same_time_to_the_command_line_as_to_pulumi(tmp_path: Path) -> None:
    """Pulumi's are what config.Map of its SDK 3.259.0 makes of these lines."""
    times = {
        "2027-01-31": ("2027-01-31 00:00:00 +0000 UTC", "2027-01-31T00:00:00Z"),
        "2026-12-01T00:00:00Z": ("2026-12-01 00:00:00 +0000 UTC", "2026-12-01T00:00:00Z"),
        "2026-12-01T01:30:00+01:00": ("2026-12-01 01:30:00 +0100 +0100", "2026-12-01T00:30:00Z"),
        '"2026-12-01T00:00:00Z"': ("2026-12-01T00:00:00Z", "2026-12-01T00:00:00Z"),
    }
    for line, (pulumi, meant) in times.items():
        path = written(tmp_path, f"config:\n  oasis:cluster:\n    maintenance_exclusion:\n      start: {line}\n")
        given = {"oasis:cluster": json.dumps({"maintenance_exclusion": {"start": pulumi}})}

        for config in (stack_file.config(path), given):
            assert from_config(config) == {"cluster": {"maintenance_exclusion": {"start": meant}}}, line


def test_a_stack_without_a_file_is_answered_with_those_that_have_one() -> None:
    with pytest.raises(StackFileError, match=r"stacks here: dev, local\. Copy Pulumi\.dev\.yaml"):
        stack_file.find("prod")
    for name in ("../dev", "a b", ""):
        with pytest.raises(StackFileError, match=rf"{name!r} is not a stack name"):
            stack_file.find(name)


def test_a_file_that_cannot_be_read_or_written_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "Pulumi.some.yaml"
    path.write_bytes("config: {} # é\n".encode("latin-1"))
    for look in (stack_file.config, stack_file.encrypted_with_passphrase, partial(fill, keys=IMAGE, value=DIGEST)):
        with pytest.raises(StackFileError, match=r"Pulumi\.some\.yaml cannot be read: .*UTF-8"):
            look(path)
    written(tmp_path, "config:\n  o:x: 1\n")
    with pytest.raises(UnicodeEncodeError):  # as any end of a write half way
        stack_file.replace(path, "\ud800")
    assert list(tmp_path.iterdir()) == [path]

    def full(path: Path, text: str) -> None:
        raise OSError("No space left on device")

    monkeypatch.setattr(stack_file, "replace", full)
    with pytest.raises(StackFileError, match=f"No space left on device.*set config / oasis:ray / image to {DIGEST}"):
        set_value(path, IMAGE, DIGEST)


def test_a_key_without_a_namespace_is_refused_as_pulumi_would_take_it_for_this_programs(tmp_path: Path) -> None:
    text = "config:\n  gcp:project: p\n  gpu: {}\n  1: x\n"
    with pytest.raises(StackFileError, match=r"gpu, 1 has no namespace; allowed: .* Write oasis:gpu, or remove it\."):
        stack_file.config(written(tmp_path, text))


def test_a_section_beside_config_is_no_setting_that_is_silently_off(tmp_path: Path) -> None:
    text = "config:\n  gcp:project: p\nsecretsprovider: gcpkms://k\n"
    assert stack_file.config(written(tmp_path, text)) == {"gcp:project": "p"}
    # Where Pulumi moves what was commented out at the end of `config` when it writes the file.
    with pytest.raises(StackFileError, match="oasis:cost is not below `config:`"):
        stack_file.config(written(tmp_path, f"{text}oasis:cost:\n  max_hourly_usd: 450\n"))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("config:\n  a: 2026-13-45\n", "2026-13-45 is not a date.*in quotes.*in Pulumi.some.yaml, line 2"),
        ("config: {\n", "while parsing.*in Pulumi.some.yaml, line 2"),
        ("- a\n", "Pulumi.some.yaml must be keys and values"),
        ("config: text\n", "Pulumi.some.yaml: `config:` must be keys and values"),
    ],
)
def test_a_file_that_does_not_read_is_named_with_what_is_wrong(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(StackFileError, match=f"(?s){words}"):
        stack_file.config(written(tmp_path, text))


def test_a_file_that_is_read_again_is_the_same_whatever_became_of_what_was_read(tmp_path: Path) -> None:
    path = written(tmp_path, "config:\n  o:a: &a {x: 1, y: 2}\n  o:b: {<<: *a, x: 3}\n")
    first = stack_file.config(path)
    assert first == {"o:a": {"x": 1, "y": 2}, "o:b": {"x": 3, "y": 2}}
    first.clear()
    assert stack_file.config(path) == {"o:a": {"x": 1, "y": 2}, "o:b": {"x": 3, "y": 2}}
