"""`bench compare`: it finds what got slower, names it, and cries wolf over nothing."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.support.bench_results import conditions, measured, run
from tests.support.command_line import CommandLine
from workloads.errors import UsageError
from workloads.nccl.definitions.bandwidth import format_size
from workloads.nccl.definitions.stages import Stage
from workloads.nccl.results import compare, report
from workloads.nccl.results.measured import Measured
from workloads.nccl.results.records import Results
from workloads.storage.folders import locate

SEEDS = 100

ALL = Stage(name="all", nodes=(0, 1))
ONE = measured(ALL, conditions(2))
"""Two nodes together, without noise."""


def results(found: list[Measured], source: str = "here", **more: Any) -> Results:
    return Results(source=source, measured=tuple(found), **more)


def changed(before: list[Results], after: list[Results]) -> list[compare.Compared]:
    """What is found to differ beyond noise."""
    return [line for line in compare.compare(before, after).lines if line.change.real]


@pytest.mark.thorough
@pytest.mark.parametrize("scatter", [0.002, 0.01, 0.1])
def test_two_draws_of_one_distribution_do_not_differ(scatter: float) -> None:
    draw = random.Random(f"like {scatter}")
    alarms = sum(
        bool(changed([results(run(2, draw, noise=scatter))], [results(run(2, draw, noise=scatter))]))
        for _ in range(SEEDS)
    )
    # Each comparison may be wrong once in a hundred times; more than four of a hundred is once in 300.
    assert compare.FALSE_ALARM == 0.01 and alarms <= 4


@pytest.mark.thorough
def test_a_loss_of_ten_percent_is_found_every_time() -> None:
    draw = random.Random("slower")
    for _ in range(SEEDS):
        found = changed([results(run(2, draw))], [results(run(2, draw, slower=1 / 0.9))])
        assert len(found) == 12 and all(line.change.size > 0 for line in found)
        assert {line.regime for line in found} == {"latency", "middle", "bandwidth"}


@pytest.mark.thorough
def test_repetitions_find_a_smaller_loss_without_more_false_alarms() -> None:
    draw = random.Random("repeated")
    alarms = missed = 0
    for _ in range(40):
        before, after, slower = (
            [results([measured(ALL, conditions(2), draw, factor)]) for _ in range(6)] for factor in (1.0, 1.0, 1.04)
        )
        alarms += bool(changed(before, after))
        missed += len(changed(before, slower)) < 2
    assert alarms <= 3 and missed <= 2


def test_only_the_stage_that_is_slower_is_named_and_what_is_faster_is_no_regression() -> None:
    draw = random.Random("one")
    before, after = run(4, draw), run(4, draw)
    stages = [one.stage.name for one in before]
    slow, fast = stages.index("node 2"), stages.index("all")
    for place, factor in ((slow, 1.2), (fast, 0.8)):
        after[place] = measured(after[place].stage, after[place].conditions, draw, factor)
    found = changed([results(before)], [results(after)])
    assert {(line.key.stage, line.change.size > 0) for line in found} == {("node 2", True), ("all", False)}
    assert all(line.words.startswith("slower by" if line.change.size > 0 else "faster by") for line in found)


def test_calls_that_vary_widen_the_noise() -> None:
    """The blocking times are what shows jitter where there is one run on each side."""

    def shaky(one: Measured) -> Measured:
        rows = []
        for row in one.rows:
            alone = row.in_place.blocking
            assert alone is not None
            wide = replace(row.in_place, blocking=replace(alone, p95=2 * alone.p50, p99=3 * alone.p50))
            rows.append(replace(row, in_place=wide, out_of_place=wide))
        return replace(one, rows=tuple(rows))

    (narrow, *_), (wide, *_) = (compare.compare([results([one])], [results([one])]).lines for one in (ONE, shaky(ONE)))
    assert wide.change.noise > 1.3 * narrow.change.noise


def test_noise_in_which_half_the_speed_would_be_lost_is_judged_by_nobody(tmp_path: Path, cli: CommandLine) -> None:
    """One size each, of which the second run's places disagree by a factor of fifty."""
    last = ONE.rows[-1]
    torn = replace(last, in_place=replace(last.in_place, seconds=50 * last.in_place.seconds))
    for name, rows in (("a", (last,)), ("b", (torn,))):
        report.write([locate(tmp_path / name)], [replace(ONE, rows=rows)])
    words = ["bench", "compare", str(tmp_path / "a"), str(tmp_path / "b")]

    printed = cli(*words).out
    assert "too noisy to judge (noise above 50 %)" in printed and "no difference" not in printed
    assert "# too noisy to judge: Give several results on each side" in printed
    # Whoever asks for a failure is not told that all is well by a comparison that saw nothing.
    assert "1 of 1 comparisons of the two are too noisy" in cli(*words, "--fail-on-regression", code=5).err


@pytest.mark.parametrize(
    ("theirs", "words"),
    [
        (measured(ALL, conditions(2, backend="gloo")), "different backends, nccl in a and gloo in b"),
        (
            measured(ALL, conditions(4)),
            "different topologies, 2 nodes with 8 ranks each in a and 4 nodes with 8 ranks each in b",
        ),
        (
            measured(ALL, conditions(2, "all_gather")),
            r"no collective and stage in common: all_reduce \(float\), all against all_gather",
        ),
        (measured(ALL, replace(conditions(2), machine_type="a4-highgpu-8g")), "different machine types"),
        (measured(ALL, replace(conditions(2), average=True)), "different definitions of time"),
        (
            measured(replace(ALL, algorithm="RING"), conditions(2)),
            "different forced algorithms, none in a and RING in b",
        ),
        (replace(ONE, rows=(replace(ONE.rows[0], size=1),)), "no size in common"),
    ],
)
def test_what_cannot_be_compared_is_refused(theirs: Measured, words: str) -> None:
    with pytest.raises(UsageError, match=words) as refusal:
        compare.compare([results([ONE], "a")], [results([theirs], "b")])
    assert refusal.value.remedy


def test_another_path_and_a_run_that_stopped_are_told_and_a_wrong_result_is_no_measurement() -> None:
    path = {"path": "gib-gdr", "algorithm": "RING", "protocol": "SIMPLE", "channels": 16}
    before = results([ONE], "a", verdicts={"all": path})
    other = {**path, "path": "socket", "channels": 2}
    after = results([ONE], "b", verdicts={"all": other}, stopped="lost")
    found = compare.compare([before], [after])
    assert found.differences == ("all_reduce (float), all: gib-gdr RING SIMPLE 16 in A, socket RING SIMPLE 2 in B",)
    assert found.lacking == ("b stopped before its end: lost",)
    last = ONE.rows[-1]
    wrong = replace(ONE, rows=(*ONE.rows[:-1], replace(last, in_place=replace(last.in_place, wrong=3))))
    with pytest.raises(UsageError, match="3 elements of the results were wrong in b"):
        compare.compare([before], [results([wrong], "b")])


@pytest.mark.thorough
def test_the_command_prints_a_table_says_what_differs_and_fails_only_if_told_to(
    tmp_path: Path, cli: CommandLine
) -> None:
    draw = random.Random("command")
    before, after = run(2, draw), run(2, draw, slower=1.25)
    after = [replace(one, conditions=conditions(one.conditions.nodes, nccl="2.31.1")) for one in after[1:]]
    largest = format_size(after[0].rows[-1].size)
    after[0] = replace(after[0], rows=after[0].rows[:-1])
    after = [replace(one, conditions=replace(one.conditions, own_calls=True)) for one in after]
    for name, found in (("a", before), ("b", after)):
        report.write([locate(tmp_path / name)], found)
    older = tmp_path / "a" / "all_reduce.jsonl"
    older.write_text(older.read_text().replace('"own_calls": false, ', ""))
    words = ["bench", "compare", str(tmp_path / "a"), str(tmp_path / "b" / "all_reduce.jsonl")]
    printed = cli(*words).out
    assert printed.count("slower by") == 9 and "(noise " in printed
    assert "# nccl: 2.30.4 in A, 2.31.1 in B" in printed
    assert "out of place: after a copy that is not timed in A, NCCL's own calls in B" in printed
    assert "# all_reduce (float), node 0 only in A" in printed
    assert f"# all_reduce (float), {after[0].stage.name}: {largest} only in A" in printed
    assert "is slower than" in cli(*words, "--fail-on-regression", code=5).err
    assert cli("bench", "compare", words[3], words[2], "--fail-on-regression").out.count("faster by") == 9


@pytest.mark.parametrize(
    ("theirs", "stopped", "words"),
    [
        ([ONE], "rank 3 hung", "stopped before its end: rank 3 hung"),
        ([replace(ONE, rows=ONE.rows[:-1])], "", "all_reduce (float), all: 8 GiB only in A"),
        ([], "", "all_reduce (float), node 0 only in A"),
    ],
)
def test_what_the_later_results_lack_is_no_success(
    tmp_path: Path, cli: CommandLine, theirs: list[Measured], stopped: str, words: str
) -> None:
    alone = measured(Stage(name="node 0", nodes=(0,)), conditions(1))
    report.write([locate(tmp_path / "a")], [ONE, alone])
    report.write([locate(tmp_path / "b")], [*(theirs or [ONE]), *([alone] if theirs else [])], stopped=stopped)
    sides = [str(tmp_path / "a"), str(tmp_path / "b")]
    assert words in cli("bench", "compare", *sides).out
    assert words in cli("bench", "compare", *sides, "--fail-on-regression", code=5).err
    if not stopped:  # more than there was is no loss
        cli("bench", "compare", *reversed(sides), "--fail-on-regression")


def test_each_of_the_default_sizes_is_judged() -> None:
    assert [line.sizes for line in compare.compare([results([ONE])], [results([ONE])]).lines] == [
        (1 << 10, 1 << 16),
        (1 << 17, 1 << 28),
        (1 << 29, 1 << 33),
    ]
