"""The pages say what the program does, no more and no less: their files, targets, commands, links, tables, pictures."""

from __future__ import annotations

import json
import re
import shlex
from collections import Counter
from pathlib import Path
from typing import get_args

import pytest

from docs import platform_picture, terminal_picture
from emulator import demo
from oasis_stack.command_line.offline import Deployment
from oasis_stack.facts.capacity_rules import Mode
from tests.support.pages import PAGES, ROOT, section

OF_THE_SEEDS = {
    *("services.tf", "gcs.tf", "registry.tf", "build.tf", "build.sh"),
    *("convnext_train.py", "test_nccl_rdma_multi.py", "hello_world.py"),
}
"""Files that the seeds had and this tree has not."""


def first_cells(table: str) -> set[str]:
    """Every name in backquotes in the first column."""
    rows = [line for line in table.splitlines() if line.startswith("| ") and not line.startswith("|---")]
    return {name for row in rows for name in re.findall(r"`([^`]+)`", row.split("|")[1])}


def test_the_outputs_table_names_exactly_the_exports(full: Deployment, other: Deployment) -> None:
    assert first_cells(section("docs/cloud.md", "Outputs")) == set(full.exports) == set(other.exports)


def test_the_apis_that_are_said_to_be_dropped_are_not_enabled(full: Deployment) -> None:
    services = full.of_type("gcp:projects/service:Service")
    enabled = {service.inputs["service"].removesuffix(".googleapis.com") for service in services}
    said = re.search(r"Dropped, since nothing here uses them: ([a-z, ]+) \|", PAGES["docs/from-the-seeds.md"])
    assert said
    dropped = set(said[1].split(", "))
    assert "servicehealth" in dropped
    assert len(enabled) > 10
    assert dropped & enabled == set()


def test_the_readme_is_read_in_a_few_minutes() -> None:
    assert len(PAGES["README.md"].split()) <= 1500


@pytest.mark.parametrize("page", sorted(PAGES.keys() - {"README.md"}))
def test_a_page_begins_with_what_its_reader_can_do_after_it(page: str) -> None:
    assert re.match(r"# [^\n]+\n\nAfter this page you can \w", PAGES[page])


def test_the_readme_leads_to_every_page() -> None:
    linked = set(re.findall(r"\]\(([\w./-]+\.md)", PAGES["README.md"]))
    assert linked == PAGES.keys() - {"README.md"}


def anchors(text: str) -> set[str]:
    """What GitHub names the headings of a page: a second one of the same words has -1 behind it."""
    prose = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    seen: Counter[str] = Counter()
    found = set()
    for heading in re.findall(r"^#+ (.+)$", prose, re.MULTILINE):
        slug = re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
        found.add(f"{slug}-{seen[slug]}" if seen[slug] else slug)
        seen[slug] += 1
    return found


@pytest.mark.parametrize("page", sorted(PAGES))
def test_every_link_leads_somewhere(page: str) -> None:
    targets = [target for target in re.findall(r"\]\(([^)\s]+)\)", PAGES[page]) if not target.startswith("https://")]
    dead = []
    for target in targets:
        name, _, anchor = target.partition("#")
        file = (ROOT / page).parent / name if name else ROOT / page
        known = anchors(file.read_text(encoding="utf-8")) if anchor and file.is_file() else set()
        if not file.exists() or (anchor and anchor not in known):
            dead.append(target)
    assert dead == []


@pytest.mark.parametrize("page", sorted(PAGES))
def test_every_file_and_folder_that_a_page_names_is_there_by_that_path(page: str) -> None:
    files = set(re.findall(r"`((?:[\w.-]+/)*[\w.-]+\.(?:py|md|ya?ml|toml|svg|tf|sh|json|mod))`", PAGES[page]))
    tops = "|".join(re.escape(path.name) for path in ROOT.iterdir() if path.is_dir() and path.name[0] != ".")
    folders = set(re.findall(rf"`((?:{tops})(?:/[\w-]+)*/?)`", PAGES[page]))
    of_a_run = {"MANIFEST.json", "faults.json", "limits.json", "utilisation.json"}
    assert {name for name in (files | folders) - OF_THE_SEEDS - of_a_run if not (ROOT / name).exists()} == set()


def test_the_tree_names_what_is_there_and_every_package() -> None:
    named, folder = [], ""
    for line in section("README.md", "The tree").split("```")[1].strip().splitlines():
        name = line.split()[0]
        folder = folder if line.startswith(" ") else name
        named.append(folder + name if line.startswith(" ") else name)
    assert [name for name in named if not (ROOT / name).exists()] == []
    assert {f"{path.parent.name}/" for path in ROOT.glob("[a-z]*/*.py")} <= set(named)


def test_every_test_that_the_table_of_threats_names_is_one() -> None:
    table = PAGES["docs/security.md"]
    rows = [row for row in table.splitlines() if row.startswith("| ")][1:]
    tests = {path.relative_to(ROOT).as_posix(): path.read_text() for path in (ROOT / "tests").rglob("test_*.py")}
    defined = {name for text in tests.values() for name in re.findall(r"^def (test_\w+)", text, re.MULTILINE)}
    named = set(re.findall(r"`(test_\w+|tests/[\w/]+\.py)`", table))
    assert named - defined - tests.keys() == set()
    assert len(named) >= len(rows) > 8


@pytest.mark.parametrize("page", sorted(PAGES))
def test_every_make_target_that_a_page_names_exists(page: str) -> None:
    targets = set(re.findall(r"^([a-z-]+)(?:[ a-z-]*):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    assert set(re.findall(r"(?:^|`)make ([a-z-]+)", PAGES[page], re.MULTILINE)) <= targets


@pytest.mark.parametrize("page", sorted(PAGES))
def test_a_comment_of_a_command_line_is_harmless_to_zsh_which_runs_what_is_in_backquotes_there(page: str) -> None:
    """A Mac's shell takes no comments from a terminal: one apostrophe, and the lines below are part of a text."""
    blocks = re.findall(r"^```sh\n(.*?)^```", PAGES[page], re.MULTILINE | re.DOTALL)
    comments = [comment for block in blocks for comment in re.findall(r" # .*", block)]
    assert [comment for comment in comments if re.search(r"[`'\"$?*;&|<>()]", comment)] == []


def commands(module: str) -> list[list[str]]:
    """What the pages and the Makefile give to `python -m <module>`, as arguments."""
    text = "\n".join([*PAGES.values(), (ROOT / "Makefile").read_text(encoding="utf-8")]).replace("\\\n", " ")
    found = re.findall(rf"-m {module} ([^`\n#;)]+)", text)
    return [shlex.split(re.sub(r"\$\((\w+)\)", r"docker", line).replace("[", "").replace("]", "")) for line in found]


def test_every_command_line_that_a_page_or_the_makefile_gives_is_one() -> None:
    from emulator.__main__ import _parser as of_the_emulator
    from oasis_stack.__main__ import parser as of_the_stack
    from workloads.__main__ import _parser as of_the_workloads
    from workloads.jobs.submit import OWN_COMMANDS

    for words in commands("oasis_stack"):
        of_the_stack().parse_args(words)
    for words in commands("emulator"):
        of_the_emulator().parse_args(words)
    shown = commands("workloads")
    assert {words[0] for words in shown} >= {"submit", "jobs", "train", "bench", "runs", "tune"}
    submitted = [words[words.index("--") + 1 :] for words in shown if "--" in words]
    for words in [*shown, *(words for words in submitted if words[0] in OWN_COMMANDS)]:
        parser, _ = of_the_workloads(words[0])
        parser.parse_args(words)


def test_every_benchmark_that_a_page_names_exists() -> None:
    named = set(re.findall(r"-m benchmarks\.(\w+)", "\n".join(PAGES.values())))
    assert {"gpu", "one_gpu", "platform", "scaling"} <= named
    there = {path.stem for path in (ROOT / "benchmarks").glob("*.py")}
    there |= {path.parent.name for path in (ROOT / "benchmarks").glob("*/__main__.py")}
    assert named - there == set()


@pytest.mark.parametrize("page", sorted(PAGES))
def test_nothing_on_a_page_waits_to_be_filled_in(page: str) -> None:
    assert not re.search(r"@@|TBD|XXX", PAGES[page])


@pytest.mark.parametrize("picture", ["platform.svg", "demo.svg", "curve.png", "all_reduce.png"])
def test_the_readme_s_pictures_are_small(picture: str) -> None:
    assert f"(docs/{picture})" in PAGES["README.md"]
    assert (ROOT / "docs" / picture).stat().st_size < (150_000 if picture != "platform.svg" else 250_000)


def test_the_picture_is_the_one_that_the_code_draws(tmp_path: Path) -> None:
    platform_picture.draw(tmp_path / "platform.svg")
    assert (tmp_path / "platform.svg").read_text() == (ROOT / "docs" / "platform.svg").read_text()


def test_the_terminal_is_drawn_from_its_recording(tmp_path: Path) -> None:
    terminal_picture.draw(terminal_picture.CAST, tmp_path / "demo.svg")
    assert (tmp_path / "demo.svg").read_text() == terminal_picture.PICTURE.read_text()


def test_the_recording_is_of_a_whole_demo_as_it_is_now() -> None:
    header, *events = [json.loads(line) for line in terminal_picture.CAST.read_text(encoding="utf-8").splitlines()]
    assert header["title"] == "make demo"
    shown = "".join(text for _, _, text in events)
    for step in demo.steps("gs://oasis-local-oasis-data", Path(".oasis/results")):
        assert f"\n== {step.title}\r\n" in shown
        assert " ".join(step.command[1:]) in shown
    assert "== the platform is up" in shown
    assert all(f".oasis/results/{name}\r\n" in shown for name in demo.RESULTS)


def test_a_command_is_recorded_as_it_runs_and_drawn_with_what_repeats_folded(tmp_path: Path) -> None:
    cast, picture = tmp_path / "a.cast", tmp_path / "a.svg"
    script = 'for n in {1..9}; do echo "  $n.0 s  created  Thing <$n>"; done; cd docs; pwd; exit 3'
    assert terminal_picture.record(["bash", "-c", script], cast) == 3
    *_, last = cast.read_text().splitlines()
    assert json.loads(last)[1:] == ["o", "docs\r\n"]
    terminal_picture.draw(cast, picture)
    words = re.sub(r"<[^>]*>", " ", picture.read_text()).split()
    assert [f"&lt;{n}&gt;" in words for n in range(1, 10)] == [True] * 3 + [False] * 2 + [True] * 4
    assert words[words.index("...") :][:4] == ["...", "2", "more", "lines"]


def test_the_picture_shows_what_the_program_builds(full: Deployment) -> None:
    text = "\n".join(line for box in platform_picture.BOXES for line in (box.title, *box.lines))
    gvnic, first, *_, last = sorted(one.name for one in full.of_type("kubernetes:networking.gke.io/v1:Network"))
    assert f"Network {gvnic}" in text and f"Networks {first} .. {last}" in text
    pool = full.get("gcp:container/nodePool:NodePool", "gpu-spot").inputs
    assert f"{pool['nodeConfig']['machineType']}, {pool['initialNodeCount']:.0f} nodes at rest" in text
    assert {*re.findall(r"[\w-]+", text.lower())} & {*get_args(Mode)} == {*get_args(Mode)} - {"on-demand"}
    networks = [network.inputs["mtu"] for network in full.of_type("gcp:compute/network:Network")]
    assert text.count(f"MTU {networks[0]:.0f}") == len(networks)
