"""What a benchmark leaves behind, on disk and in a bucket: tables for people, JSON lines and CSV, plots, NCCL's logs.

One set of files per collective, whatever the number of stages; a log per stage and rank.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from workloads.nccl.definitions import bandwidth
from workloads.nccl.results.measured import Measured, widest
from workloads.nccl.results.remarks import NO_REMARKS, Records, Remarks

if TYPE_CHECKING:
    from workloads.storage.folders import Folder


LOGS = "logs"
"""Folder of NCCL's own logs, beside the tables."""


def write(folders: Sequence[Folder], measured: Sequence[Measured], remarks: Remarks = NO_REMARKS) -> list[str]:
    """Write every file into each folder; returns the files' names.

    Args:
        folders: where to; on a disk or in a bucket.
        measured: the stages, in the order in which they are to be shown; at least one, each with at least one row.
        remarks: on them.
    """
    files: dict[str, bytes] = {}
    for op in dict.fromkeys(one.conditions.op for one in measured):
        of = [one for one in measured if one.conditions.op == op]
        files |= _files(op, of, remarks)
    for one in measured:
        files |= log_files(one.conditions.op, one.stage.name, one.logs)
    _put(folders, files)
    return list(files)


def write_logs(folders: Sequence[Folder], op: str, logs: Mapping[str, Mapping[int, str]]) -> list[str]:
    """Write NCCL's logs alone, of stages that came to no result; returns the files' names.

    Args:
        folders: where to.
        op: the collective.
        logs: of each rank, by stage.
    """
    files = {name: content for stage, texts in logs.items() for name, content in log_files(op, stage, texts).items()}
    _put(folders, files)
    return list(files)


def log_files(op: str, stage: str, logs: Mapping[int, str]) -> dict[str, bytes]:
    """NCCL's logs of a stage's ranks as files, by name."""
    return {f"{LOGS}/{slug(op)}-{slug(stage)}-rank{rank}.log": log.encode() for rank, log in logs.items()}


def _put(folders: Sequence[Folder], files: Mapping[str, bytes]) -> None:
    from workloads.storage.folders import in_parallel

    def put(item: tuple[Folder, str]) -> None:
        folder, name = item
        inside, _, last = name.rpartition("/")
        (folder.child(inside) if inside else folder).write(last, files[name])

    in_parallel(put, [(folder, name) for folder in folders for name in files])


def slug(text: str) -> str:
    """A stage's name as part of a file name: `nodes-0-1-ring`."""
    return "-".join("".join(letter if letter.isalnum() or letter == "_" else " " for letter in text).split())


def _files(op: str, measured: Sequence[Measured], remarks: Remarks) -> dict[str, bytes]:
    from workloads.nccl.results import plot, records

    pictures = plot.draw(op, widest(measured).conditions.where(), measured)
    return {
        f"{op}.txt": text(measured, remarks).encode(),
        f"{op}.jsonl": records.json_lines(measured, remarks).encode(),
        f"{op}.csv": comma_separated(measured, remarks.verdicts).encode(),
        **{f"{op}.{form}": picture for form, picture in pictures.items()},
    }


def text(measured: Sequence[Measured], remarks: Remarks) -> str:
    """The tables of all stages, each with its verdict and judgement beneath, as in the terminal.

    Args:
        measured: stages of one collective.
        remarks: on them.
    """
    lines = []
    for one in measured:
        name = one.stage.name
        lines += [f"# stage: {name}", *one.conditions.lines(), bandwidth.table(one.rows)]
        lines += verdict_lines(remarks.verdicts.get(name), remarks.judgements.get(name))
        lines.append("")
    lines += [f"# slow: {one.text}" for one in remarks.suspects]
    if remarks.stopped:
        lines.append(f"# stopped before its end: {remarks.stopped}")
    return "\n".join([*lines, ""]) if remarks.suspects or remarks.stopped else "\n".join(lines)


def verdict_lines(verdict: dict[str, Any] | None, judgement: dict[str, Any] | None) -> list[str]:
    """The judgement of the log and the thresholds on a stage, a comment line each.

    Args:
        verdict: record of the path that was taken; None where it was not looked for.
        judgement: record of what the figures mean; None where nobody judged.
    """
    lines = []
    if verdict is not None:
        named = ((name, verdict.get(name)) for name in ("algorithm", "protocol", "channels", "plugin"))
        said = ", ".join(f"{name} {value}" for name, value in named if value)
        lines.append(f"# Path taken           : {verdict['path']}{f' ({said})' if said else ''}")
        lines += [f"# {one['severity']}: {one['problem']} {one['remedy']}" for one in verdict.get("problems", ())]
    if judgement is not None:
        reasons = "; ".join(judgement.get("reasons", ()))
        lines.append(f"# Verdict              : {judgement['verdict']}{f': {reasons}' if reasons else ''}")
    return lines


COLUMNS = (
    *("op", "stage", "backend", "nodes", "ranks", "forced_algorithm", "path", "size", "count", "type", "redop", "root"),
    *("place", "time_us", "algbw", "busbw", "wrong", "iterations", "slowest_rank"),
    *("blocking_p50_us", "blocking_p95_us", "blocking_p99_us", "blocking_max_us"),
)
"""Of the CSV; a line is one size in one place."""


def comma_separated(measured: Sequence[Measured], verdicts: Records) -> str:
    """The rows as CSV: a header, then a line for each size out of place and one in place.

    Args:
        measured: stages of one collective.
        verdicts: by stage; their path is a column.
    """
    written = io.StringIO()
    table = csv.writer(written, lineterminator="\n")
    table.writerow(COLUMNS)
    for one in measured:
        conditions, stage = one.conditions, one.stage
        path = verdicts.get(stage.name, {}).get("path", "")
        whose = (conditions.op, stage.name, conditions.backend, conditions.nodes, conditions.ranks, stage.algorithm)
        for row in one.rows:
            what = (row.size, row.count, row.dtype, row.redop, row.root)
            for place, timing in (("out_of_place", row.out_of_place), ("in_place", row.in_place)):
                alone = timing.blocking
                calls = (alone.p50, alone.p95, alone.p99, alone.max) if alone else ()
                table.writerow(
                    [
                        *(*whose, path, *what, place),
                        *(f"{timing.seconds * 1e6:.3f}", f"{row.algbw(timing):.4f}", f"{row.busbw(timing):.4f}"),
                        *("" if timing.wrong is None else timing.wrong, timing.iterations, timing.slowest_rank),
                        *([f"{seconds * 1e6:.3f}" for seconds in calls] or [""] * 4),
                    ]
                )
    return written.getvalue()
