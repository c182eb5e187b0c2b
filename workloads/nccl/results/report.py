"""The output of a benchmark, while it runs and afterwards: tables for people, JSON lines and CSV, plots, NCCL's logs.

There is one set of files per collective, on disk and in a bucket, for any number of stages; a log per stage and rank.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

from workloads.nccl.definitions import bandwidth
from workloads.nccl.definitions.bandwidth import Row
from workloads.nccl.definitions.stages import Stage
from workloads.nccl.results import findings, records
from workloads.nccl.results.findings import JudgedStage
from workloads.nccl.results.measured import Conditions, Measured, widest
from workloads.nccl.results.suspects import Suspect, suspects
from workloads.reporting import progress

if TYPE_CHECKING:
    from workloads.storage.folders import Folder

LOGS = "logs"
"""Folder of NCCL's own logs, beside the tables."""


class Printer:
    """Prints the tables while they grow."""

    def __init__(self) -> None:
        self._rows: list[Row] = []

    def begin(self, stage: Stage, conditions: Conditions) -> None:
        """A stage's table begins."""
        self.end()
        for line in [f"# stage: {stage.name}", *conditions.lines(), *bandwidth.table_header().splitlines()]:
            progress.note(line)

    def show(self, stage: Stage, row: Row) -> None:
        """It has one more row."""
        self._rows.append(row)
        text = bandwidth.table_row(row)
        progress.emit({"event": "note", "text": text, "stage": stage.name, **records.row_record(row)})

    def end(self) -> None:
        """It ends, if one has begun."""
        if self._rows:
            for text in (bandwidth.table_footer(self._rows), bandwidth.jitter(self._rows)):
                for line in text.splitlines():
                    progress.note(line)
        self._rows = []


def show_findings(measured: Sequence[Measured]) -> list[JudgedStage]:
    """Print each stage's judgement once, and the slow nodes, rails and ranks."""
    judged = findings.judged(measured)
    for one in judged:
        for line in verdict_lines(one):
            progress.note(f"# {one.measured.stage.name}: {line.removeprefix('# ')}")
    for suspect in suspects(measured):
        progress.note(f"# slow: {suspect.text}")
    return judged


def verdict_lines(one: JudgedStage) -> list[str]:
    """The judgement of the log and the thresholds on a stage, a comment line each."""
    named = ((name, getattr(one.verdict, name)) for name in ("algorithm", "protocol", "channels", "plugin"))
    said = ", ".join(f"{name} {value}" for name, value in named if value)
    reasons = "; ".join(one.judgement.reasons)
    return [
        f"# Path taken           : {one.verdict.path}{f' ({said})' if said else ''}",
        *(f"# {problem.severity}: {problem}" for problem in one.verdict.problems),
        f"# Verdict              : {one.judgement.outcome}{f': {reasons}' if reasons else ''}",
    ]


def write(
    folders: Sequence[Folder], measured: Sequence[Measured], judged: Sequence[JudgedStage] = (), stopped: str = ""
) -> list[str]:
    """Write every file into each folder; returns the files' names.

    Args:
        folders: where to; on a disk or in a bucket.
        measured: the stages, in the order in which they are to be shown; at least one, each with at least one row.
        judged: those that were judged.
        stopped: why stages are missing; empty where none is.
    """
    from workloads.nccl.results import plot

    files: dict[str, bytes] = {}
    slow = suspects(measured)
    for op in dict.fromkeys(one.conditions.op for one in measured):
        of = [one for one in measured if one.conditions.op == op]
        files[f"{op}.txt"] = text(of, judged, slow, stopped).encode()
        files[f"{op}.jsonl"] = records.json_lines(of, judged, slow, stopped).encode()
        files[f"{op}.csv"] = comma_separated(of, judged).encode()
        for form, picture in plot.draw(op, widest(of).conditions.where(), of).items():
            files[f"{op}.{form}"] = picture
    for one in measured:
        files |= log_files(one.conditions.op, one.stage.name, one.logs)
    return _put(folders, files)


def write_logs(folders: Sequence[Folder], op: str, logs: Mapping[str, Mapping[int, str]]) -> list[str]:
    """Write NCCL's logs alone, of stages that came to no result; returns the files' names.

    Args:
        folders: where to.
        op: the collective.
        logs: of each rank, by stage.
    """
    files = {name: content for stage, texts in logs.items() for name, content in log_files(op, stage, texts).items()}
    return _put(folders, files)


def log_files(op: str, stage: str, logs: Mapping[int, str]) -> dict[str, bytes]:
    """NCCL's logs of a stage's ranks as files, by name: `logs/all_reduce-nodes-0-1-ring-rank0.log`."""
    slug = "-".join(re.findall(r"\w+", f"{op} {stage}"))
    return {f"{LOGS}/{slug}-rank{rank}.log": log.encode() for rank, log in logs.items()}


def _put(folders: Sequence[Folder], files: Mapping[str, bytes]) -> list[str]:
    from workloads.storage.folders import in_parallel

    def put(item: tuple[Folder, str]) -> None:
        folder, name = item
        inside, _, last = name.rpartition("/")
        (folder.child(inside) if inside else folder).write(last, files[name])

    in_parallel(put, [(folder, name) for folder in folders for name in files])
    return list(files)


def text(measured: Sequence[Measured], judged: Sequence[JudgedStage], slow: Sequence[Suspect], stopped: str) -> str:
    """The tables of all stages, each with its verdict and judgement beneath, as in the terminal.

    Args:
        measured: stages of one collective.
        judged: those that were judged.
        slow: who is slow.
        stopped: why stages are missing; empty where none is.
    """
    verdicts = {one.measured.stage.name: verdict_lines(one) for one in judged}
    lines = []
    for one in measured:
        name = one.stage.name
        lines += [f"# stage: {name}", *one.conditions.lines(), bandwidth.table(one.rows), *verdicts.get(name, ()), ""]
    lines += [f"# slow: {one.text}" for one in slow]
    if stopped:
        lines.append(f"# stopped before its end: {stopped}")
    return "\n".join([*lines, ""]) if slow or stopped else "\n".join(lines)


COLUMNS = (
    *("op", "stage", "backend", "nodes", "ranks", "forced_algorithm", "path", "size", "count", "type", "redop", "root"),
    *("place", "time_us", "algbw", "busbw", "wrong", "iterations", "slowest_rank"),
    *("blocking_p50_us", "blocking_p95_us", "blocking_p99_us", "blocking_max_us"),
)
"""Of the CSV; a line is one size in one place."""


def comma_separated(measured: Sequence[Measured], judged: Sequence[JudgedStage]) -> str:
    """The rows as CSV: a header, then a line for each size out of place and one in place.

    Args:
        measured: stages of one collective.
        judged: those that were judged; their path is a column.
    """
    paths = {one.measured.stage.name: one.verdict.path for one in judged}
    written = io.StringIO()
    table = csv.DictWriter(written, COLUMNS, lineterminator="\n", extrasaction="ignore")
    table.writeheader()
    for one in measured:
        stage = {"stage": one.stage.name, "forced_algorithm": one.stage.algorithm, "path": paths.get(one.stage.name)}
        whose = asdict(one.conditions) | stage
        for record in map(records.row_record, one.rows):
            for place in ("out_of_place", "in_place"):
                timing = record[place]
                line = whose | record | timing | {"place": place}
                line |= {"time_us": f"{timing['time_us']:.3f}"}
                line |= {name: f"{timing[name]:.4f}" for name in ("algbw", "busbw")}
                line |= {f"blocking_{name}": f"{value:.3f}" for name, value in (timing["blocking"] or {}).items()}
                table.writerow(line)
    return written.getvalue()
