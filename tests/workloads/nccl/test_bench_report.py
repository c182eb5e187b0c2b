"""What a benchmark leaves behind: files that read back as what was measured, and say so where they do not."""

from __future__ import annotations

import csv
import io
import json
import re
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from tests.support.bench_results import conditions, measured, run, timing
from tests.support.command_line import CommandLine
from workloads.errors import DataIntegrityError, UsageError
from workloads.nccl.definitions.bandwidth import Row
from workloads.nccl.definitions.stages import Link, Stage
from workloads.nccl.logs.verdict import Diagnosis, NicState, Verdict
from workloads.nccl.results import plot, records, report
from workloads.nccl.results.findings import JudgedStage
from workloads.nccl.results.measured import Measured
from workloads.nccl.results.thresholds import Judgement
from workloads.storage.folders import locate

VERDICT = Verdict(
    path="gib-host",
    network="gIB",
    version="2.30.4",
    plugin="gIB",
    plugin_version="",
    tuner="",
    algorithm="NVLSTree",
    protocol="SIMPLE",
    channels=16,
    nvls=None,
    nics=(NicState(node="host-1", index=3, name="mlx5_3", link="RoCE", gpu_direct=False, channels=2),),
    problems=(Diagnosis(severity="error", problem="mlx5_3 of host-1 has no GPUDirect.", remedy="Restart it."),),
)
JUDGEMENT = Judgement(outcome="fail", reasons=("busbw 99 is below 340",), busbw=99.0)


def judged(found: list[Measured]) -> list[JudgedStage]:
    """The one stage of which something is said."""
    return [JudgedStage(one, VERDICT, JUDGEMENT) for one in found if one.stage.name == "all"]


def two_nodes() -> list[Measured]:
    """Stages of two nodes, with a link and logs in its last stage."""
    *others, last = run(2)
    return [*others, replace(last, links=(Link(ranks=(0, 8), seconds=1e-3),), logs={0: "zero\n", 15: "fifteen\n"})]


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Results that no test changes."""
    folder = tmp_path_factory.mktemp("written")
    report.write([locate(folder)], two_nodes(), judged(two_nodes()))
    return folder


def rounded(row: Row) -> Any:
    """All of a row, to be compared with one that went through microseconds and back."""
    return json.loads(json.dumps(asdict(row)), parse_float=lambda number: f"{float(number):.6g}")


def test_every_form_of_each_collective_s_results_is_written_and_a_log_for_each_stage_and_rank(tmp_path: Path) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    *_, last = two_nodes()
    gather = measured(Stage(name="all", nodes=(0, 1)), conditions(2, "all_gather"))
    names = report.write([locate(here), locate(there)], [last, gather])
    logs = {f"logs/all_reduce-nodes-0-1-ring-rank{rank}.log" for rank in (0, 15)}
    forms, ops = ("txt", "jsonl", "csv", "png", "svg"), ("all_reduce", "all_gather")
    assert set(names) == {f"{op}.{form}" for op in ops for form in forms} | logs
    for name in names:
        assert (here / name).read_bytes() == (there / name).read_bytes() != b""
    for op in ops:
        (only,) = records.read((here / f"{op}.jsonl").read_bytes(), op).measured
        assert only.conditions.op == op
    assert (here / "logs" / "all_reduce-nodes-0-1-ring-rank15.log").read_text() == "fifteen\n"


def test_the_json_lines_read_back_as_what_was_measured(written: Path) -> None:
    content = (written / "all_reduce.jsonl").read_bytes()
    head = json.loads(content.splitlines()[0])
    assert (head["schema"], head["kind"], head["ranks"], head["machine_type"]) == (
        "oasis.collective/3",
        "environment",
        16,
        "a3-ultragpu-8g",
    )
    assert head["image"] == "repository/ray@sha256:1" and head["node_of_rank"] == [0] * 8 + [1] * 8
    results = records.read(content, "here")
    assert list(results.verdicts) == ["all"] and results.stopped == ""
    assert results.verdicts["all"] == json.loads(json.dumps({"ok": False, **asdict(VERDICT)}))
    stages = [line for line in map(json.loads, content.splitlines()) if line["kind"] == "stage"]
    kept = {"busbw": 99.0, "reasons": ["busbw 99 is below 340"], "verdict": "fail"}
    assert [line["judgement"] for line in stages] == [kept if line["name"] == "all" else None for line in stages]
    for before, after in zip(two_nodes(), results.measured, strict=True):
        assert (after.stage, after.conditions, after.links, dict(after.logs)) == (
            before.stage,
            before.conditions,
            before.links,
            {},
        )
        assert list(map(rounded, after.rows)) == list(map(rounded, before.rows))


def test_who_is_slow_and_why_stages_are_missing_are_kept_with_the_numbers(tmp_path: Path) -> None:
    why = "Rank 3 of 'all', on node 1 (b) died: lost"
    sound, other = run(2)[:2]
    there = replace(other.conditions, node_of_rank=(1,) * 8)
    slow = measured(other.stage, there, slower=2.5)
    report.write([locate(tmp_path)], [sound, slow], stopped=why)
    content = (tmp_path / "all_reduce.jsonl").read_bytes()
    (line,) = [record for record in map(json.loads, content.splitlines()) if record["kind"] == "suspect"]
    assert (line["part"], line["number"], round(line["ratio"], 3)) == ("node", 1, 2.5)
    assert records.read(content, "here").stopped == why
    text = (tmp_path / "all_reduce.txt").read_text()
    assert text.endswith(f"# slow: {line['text']}\n# stopped before its end: {why}\n")


def test_what_cannot_be_checked_in_place_is_null_and_empty_and_reads_back(tmp_path: Path) -> None:
    one = measured(Stage(name="all", nodes=(0, 1)), conditions(2, "all_to_all"))
    row = replace(one.rows[0], in_place=timing(1e-3, 16, blocking=False, wrong=None))
    report.write([locate(tmp_path)], [replace(one, rows=(row,))])
    (read,) = records.read((tmp_path / "all_to_all.jsonl").read_bytes(), "here").measured
    assert read.rows[0].in_place.wrong is None and read.rows[0].in_place.blocking is None
    out, into = csv.DictReader(io.StringIO((tmp_path / "all_to_all.csv").read_text()))
    assert (out["wrong"], into["wrong"], into["blocking_p99_us"]) == ("0", "", "")


def test_the_csv_has_the_table_s_numbers(written: Path) -> None:
    lines = list(csv.DictReader(io.StringIO((written / "all_reduce.csv").read_text())))
    found = two_nodes()
    assert len(lines) == 2 * sum(len(one.rows) for one in found)
    last, row = lines[-1], found[-1].rows[-1]
    assert (last["stage"], last["forced_algorithm"], last["place"], last["size"]) == (
        *("nodes 0+1, ring", "RING"),
        *("in_place", str(row.size)),
    )
    assert float(last["busbw"]) == pytest.approx(row.busbw(row.in_place), abs=1e-3)
    assert float(last["time_us"]) == pytest.approx(row.in_place.seconds * 1e6, abs=1e-3)
    assert {line["path"] for line in lines if line["stage"] == "all"} == {"gib-host"}


def test_the_table_for_people_has_every_stage_with_its_verdict_and_judgement(written: Path) -> None:
    text = (written / "all_reduce.txt").read_text()
    parts = text.split("# stage: ")[1:]
    assert [part.splitlines()[0] for part in parts] == ["node 0", "node 1", "all", "nodes 0+1, ring"]
    assert "# all_reduce: 2 nodes, 16 ranks, nccl, NVIDIA H200 (a3-ultragpu-8g)" in parts[2]
    assert "slowest rank (nccl-tests -a 3)" in parts[2]
    assert "gib-host (algorithm NVLSTree, protocol SIMPLE, channels 16, plugin gIB)" in parts[2]
    assert "# error: mlx5_3 of host-1 has no GPUDirect. Restart it." in parts[2]
    assert "fail: busbw 99 is below 340" in parts[2]
    assert "Verdict" not in parts[0] and "1 node, 8 ranks" in parts[0]
    average = replace(conditions(), average=True)
    assert any("mean over the ranks (nccl-tests -a 1)" in line for line in average.lines())


def test_a_file_that_is_cut_off_anywhere_is_known_for_one(written: Path) -> None:
    content = (written / "all_reduce.jsonl").read_bytes()
    ends = [place for place, byte in enumerate(content) if byte == ord("\n")]
    for end in (*ends[:3], *ends[-3:-1]):
        for cut in (end, end + 1, end + 20):
            with pytest.raises(DataIntegrityError, match=r"r\.jsonl is cut off: line \d+") as refusal:
                records.read(content[:cut], "r.jsonl")
            assert "runs bucket" in refusal.value.remedy
    records.read(content, "r.jsonl")


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        (lambda lines: [], UsageError, "not a file of bench results"),
        (lambda lines: ["<html>", *lines[1:]], UsageError, "not a file of bench results"),
        (lambda lines: ["[]"], UsageError, "not a file of bench results"),
        (
            lambda lines: [lines[0].replace("tive/3", "tive/1"), *lines[1:]],
            UsageError,
            "oasis.collective/1; this version",
        ),
        (lambda lines: [*lines[:3], "{", *lines[4:]], DataIntegrityError, "line 4: it is not JSON"),
        (lambda lines: [*lines[:3], *lines[4:]], DataIntegrityError, "it counts"),
        (
            lambda lines: [*lines[:2], lines[2].replace('"size"', '"sise"'), *lines[3:]],
            DataIntegrityError,
            "line 3: KeyErr",
        ),
        (
            lambda lines: [*lines[:2], lines[2].replace('"row"', '"raw"'), *lines[3:]],
            DataIntegrityError,
            "line 3: ValueErr",
        ),
        (
            lambda lines: [*lines[:2], re.sub(r'"time_us": ?[0-9.]+', '"time_us": 0', lines[2]), *lines[3:]],
            DataIntegrityError,
            "line 3: ValueError: a time of 0 microseconds",
        ),
        (lambda lines: [lines[0], lines[2], *lines[2:]], DataIntegrityError, "line 2: IndexError"),
    ],
)
def test_a_damaged_file_is_refused_with_the_line_and_what_to_do(
    written: Path, change: Any, error: type[Exception], words: str
) -> None:
    lines = (written / "all_reduce.jsonl").read_text().splitlines()
    with pytest.raises(error) as refusal:
        records.read("\n".join(change(lines)).encode(), "r.jsonl")
    assert words in str(refusal.value)


@pytest.mark.thorough
def test_the_pictures_are_a_png_and_an_svg_that_change_with_the_figures_alone(written: Path, tmp_path: Path) -> None:
    assert (written / "all_reduce.png").read_bytes().startswith(b"\x89PNG\r\n")
    svg = (written / "all_reduce.svg").read_bytes()
    assert ElementTree.fromstring(svg).tag.endswith("svg")
    again, changed = tmp_path / "again", tmp_path / "changed"
    report.write([locate(again)], two_nodes(), judged(two_nodes()))
    assert (again / "all_reduce.svg").read_bytes() == svg
    *others, last = two_nodes()
    slower = replace(last.rows[-1], in_place=timing(1.0, 16))
    report.write([locate(changed)], [*others, replace(last, rows=(*last.rows[:-1], slower))])
    assert (changed / "all_reduce.svg").read_bytes() != svg


def test_a_stage_has_a_line_and_many_of_a_kind_share_one() -> None:
    assert [line.label for line in plot.lines(run(2))] == ["node 0", "node 1", "all", "nodes 0+1, ring"]
    many = plot.lines(run(4))
    assert [line.label for line in many] == [
        "a node alone: median and range of 4",
        "2 nodes, ring: median and range of 6",
        "all",
        "all, ring",
    ]
    assert [len(line.stages) for line in many] == [4, 6, 1, 1]


def texts(stages: list[Measured]) -> set[str]:
    """What is written in their picture: matplotlib writes each text of an SVG into a comment beside its outlines."""
    svg = plot.draw("all_reduce", "here", stages)["svg"].decode()
    return {comment.partition(" -->")[0] for comment in svg.split("<!-- ")[1:]}


def test_the_legend_names_what_can_be_told_apart() -> None:
    (*_, last) = found = run(2)
    for stages, named in (([last], set()), (found, {"node 0", "node 1", "all", "nodes 0+1, ring"})):
        said = texts(stages)
        assert {"out of place", "in place"} <= said
        assert said & {one.stage.name for one in found} == named


def test_one_rank_has_no_bus_and_its_own_speed_is_drawn() -> None:
    alone = measured(Stage(name="all", nodes=(0,)), conditions(1, backend="gloo", gpus=1))
    assert {row.factor for row in alone.rows} == {0.0}
    speeds = [row.algbw(row.in_place) for row in alone.rows]
    assert 250 < max(speeds) < 300 and {"algorithm bandwidth, GB/s", "250"} <= texts([alone])


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["compare", "{}/whole", "{}"], 6, "cut.jsonl is cut off"),
        (["compare", "{}/gone.jsonl", "{}"], 2, "There is no file"),
        (["compare", "{}/whole", "{}/metrics"], 2, "holds no results"),
        (["predict", "--from", "{}/cut.jsonl"], 6, "cut.jsonl is cut off"),
    ],
)
def test_what_is_no_whole_file_of_results_is_one_message_and_the_right_exit_code(
    written: Path, tmp_path: Path, cli: CommandLine, words: list[str], code: int, said: str
) -> None:
    content = (written / "all_reduce.jsonl").read_bytes()
    for name, kept in (("whole/all_reduce", content), ("cut", content[:-30]), ("metrics/journal", b"{}\n")):
        (tmp_path / f"{name}.jsonl").parent.mkdir(exist_ok=True)
        (tmp_path / f"{name}.jsonl").write_bytes(kept)
    assert said in cli("bench", *(word.format(tmp_path) for word in words), code=code).err
