"""NCCL's logs and what they are taken for: real ones from public threads and the seeds, others after its formats."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from workloads.nccl.logs import path, verdict

LOGS = Path(__file__).parent / "nccl_logs"
ASKED = {"promised": False, "nics": 0, "errors": [], "warnings": [], "expect": {}}
INDEX: dict[str, dict[str, Any]] = {
    name: ASKED | entry for name, entry in json.loads((LOGS / "index.json").read_text()).items()
}
"""Of each log: source, what is asked of the verdict, and the verdict that is right, where they are not as in `ASKED`. A
log that is no file is made `of` another by `edits`: what they find, and what takes its place."""

PROCESS = re.compile(r"([^\s:>]+):(\d+):\S+ \[\s*(\d+)\s*\] ")
HEALTHY = sorted(name for name, entry in INDEX.items() if not entry["errors"])


def text(name: str) -> str:
    entry = INDEX[name]
    if "of" not in entry:
        return (LOGS / f"{name}.txt").read_text()
    made = text(entry["of"])
    for found, put in entry.get("edits", ()):
        made, times = re.subn(found, put, made, flags=re.MULTILINE)
        assert times, f"{name}: {found} is not in the log that it is made of"
    return made


def ranks(name: str) -> dict[int, str]:
    """A log by its processes' devices, in the order in which they appear; a line that names none is the first's."""
    lines = text(name).splitlines()
    writers = [found.groups() if (found := PROCESS.search(line)) else None for line in lines]
    first = next(filter(None, writers), ())
    parts: dict[tuple[str, ...], list[str]] = {}
    for writer, line in zip(writers, lines, strict=True):
        parts.setdefault(writer or first, []).append(line)
    return {rank: "\n".join(lines) for rank, lines in enumerate(parts.values())}


def read(name: str, promised: bool | None = None) -> verdict.Verdict:
    entry = INDEX[name]
    return verdict.read(ranks(name), entry["nics"], entry["promised"] if promised is None else promised)


def test_the_logs_are_many_and_mostly_real() -> None:
    real = [name for name, entry in INDEX.items() if entry["source"].startswith(("https://", "seed", "`python -m"))]
    made = [name for name, entry in INDEX.items() if entry["source"].startswith("made")]
    assert len(real) >= 40 and len(real) + len(made) == len(INDEX)
    assert {file.stem for file in LOGS.glob("*.txt")} == {name for name, entry in INDEX.items() if "of" not in entry}
    assert {entry["path"] for entry in INDEX.values()} == set(verdict.WORDS)


@pytest.mark.parametrize("name", sorted(INDEX))
def test_a_log_gets_the_right_verdict_and_no_false_alarm(name: str) -> None:
    entry, found = INDEX[name], read(name)
    assert found.path == entry["path"]
    for severity in ("error", "warning"):
        said = [str(problem) for problem in found.problems if problem.severity == severity]
        expected = entry[f"{severity}s"]
        assert len(said) == len(expected), said
        assert all(any(words in line for line in said) for words in expected), said
    assert found.ok == (not entry["errors"])
    assert {field: getattr(found, field) for field in entry["expect"]} == entry["expect"]


@pytest.mark.parametrize("name", HEALTHY)
def test_no_log_without_gib_passes_where_rdma_was_promised(name: str) -> None:
    entry = INDEX[name]
    proven = entry["promised"] and entry["path"] == "gib-gdr"
    assert read(name, promised=True).ok == proven


@pytest.mark.parametrize("name", sorted(INDEX))
def test_a_problem_says_who_where_and_what_to_do(name: str) -> None:
    for problem in read(name, promised=True).problems:
        assert problem.remedy and problem.problem.endswith(".")
        if problem.ranks:
            assert re.search(r"\brank", str(problem))
        hosts = {log.host for log in map(path.read, ranks(name).values())}
        assert problem.node in hosts | {""}


def test_a_rank_that_wrote_nothing_is_named_with_its_node() -> None:
    logs = {**ranks("made_gib_2_27_7"), 2: ""}
    found = verdict.read(logs, 2, True, {rank: f"node-{rank // 2}" for rank in logs})
    assert [str(problem) for problem in found.problems if problem.severity == "error"] == [
        "node node-1, rank 2: Its log is empty or not NCCL's. Run with NCCL_DEBUG=INFO and "
        "NCCL_DEBUG_SUBSYS=INIT,NET,GRAPH,ENV,TUNING."
    ]


def test_no_logs_at_all_are_nothing_where_nothing_was_promised_and_an_error_where_it_was() -> None:
    assert verdict.read({}, 0, False).ok
    assert verdict.read({}, 0, False).path == "none"
    broken = verdict.read({}, 8, True)
    assert not broken.ok
    assert "nothing shows gIB: gloo" in str(broken.problems[0])


@pytest.mark.parametrize("name", ["made_gib_2_18_5", "made_gib_2_23_4", "made_gib_2_27_7", "made_gib_2_30_7"])
def test_a_healthy_log_of_which_any_part_is_missing_never_passes_for_more_than_it_shows(name: str) -> None:
    whole = ranks(name)
    for rank, text in whole.items():
        lines = text.splitlines()
        for kept in range(len(lines)):
            cut = verdict.read({**whole, rank: "\n".join(lines[:kept])}, 2, True)
            shows_gib = any("NET/gIB/" in line or "Enabled for HCA" in line for line in lines[:kept])
            assert cut.ok <= shows_gib, (rank, kept)
