"""The JSON lines of a benchmark: schema, writer, and a reader that says which line is wrong and what to do.

The last line counts the others, so that a file that was cut off is known for one even where it ends with a whole line.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from workloads.errors import DataIntegrityError, UsageError
from workloads.nccl.definitions.bandwidth import Percentiles, Row, Timing
from workloads.nccl.definitions.stages import Link, Stage
from workloads.nccl.results.measured import Conditions, Measured, widest
from workloads.nccl.results.remarks import Remarks
from workloads.nccl.results.suspects import Suspect

SCHEMA = "oasis.collective/3"
"""Version of the JSON lines. The first line is the environment of the widest stage; then come, for each stage, a line
`stage` with its own environment, verdict and judgement, its `row`s and its `link`s; then a line `suspect` for each part
that is slow; the last line is `end`, with the reason where the run stopped before its last stage. A field is never
given another meaning under the same version."""

FAMILY = "oasis.collective/"


@dataclass(frozen=True, kw_only=True)
class Results:
    """One file of results, read back."""

    source: str
    """Where it was read, for messages."""
    measured: tuple[Measured, ...]
    """Its stages, without NCCL's logs."""
    remarks: Remarks

    @property
    def conditions(self) -> Conditions:
        """Those of the widest stage."""
        return widest(self.measured).conditions


def json_lines(measured: Sequence[Measured], remarks: Remarks) -> str:
    """The machine-readable result of one collective's stages.

    Args:
        measured: at least one stage.
        remarks: on them; a verdict or judgement that is missing is written as null.
    """
    lines: list[dict[str, Any]] = [
        {"schema": SCHEMA, "kind": "environment", **asdict(widest(measured).conditions)},
    ]
    for one in measured:
        name = one.stage.name
        lines.append(
            {
                "kind": "stage",
                **asdict(one.stage),
                "environment": asdict(one.conditions),
                "verdict": remarks.verdicts.get(name),
                "judgement": remarks.judgements.get(name),
            }
        )
        lines += [{"kind": "row", "stage": name, **row_record(row)} for row in one.rows]
        lines += [{"kind": "link", "stage": name, **asdict(link)} for link in one.links]
    lines += [
        {"kind": "suspect", "part": one.kind, **{name: getattr(one, name) for name in _SUSPECT}}
        for one in remarks.suspects
    ]
    lines.append({"kind": "end", "lines": len(lines), "stopped": remarks.stopped})
    return "".join(json.dumps(line, sort_keys=True) + "\n" for line in lines)


_SUSPECT = ("number", "ratio", "text")


def row_record(row: Row) -> dict[str, Any]:
    """One row as plain data: times in microseconds, bandwidths in GB/s."""
    return {
        "op": row.op,
        "size": row.size,
        "count": row.count,
        "type": row.dtype,
        "redop": row.redop,
        "root": row.root,
        "factor": row.factor,
        "out_of_place": _timing_record(row, row.out_of_place),
        "in_place": _timing_record(row, row.in_place),
    }


def _timing_record(row: Row, timing: Timing) -> dict[str, Any]:
    alone = timing.blocking
    return {
        "time_us": timing.seconds * 1e6,
        "algbw": row.algbw(timing),
        "busbw": row.busbw(timing),
        "wrong": timing.wrong,
        "iterations": timing.iterations,
        "slowest_rank": timing.slowest_rank,
        "rank_time_us": [seconds * 1e6 for seconds in timing.rank_seconds],
        "blocking": None
        if alone is None
        else {
            "calls": alone.calls,
            "slowest_rank": alone.slowest_rank,
            **{f"{name}_us": getattr(alone, name) * 1e6 for name in ("p50", "p95", "p99", "max")},
        },
    }


def read(content: bytes, source: str) -> Results:
    """Read a file of results back.

    Args:
        content: the whole file.
        source: where it came from, for messages.

    Raises:
        UsageError: it is no file of results, or of a version that this reader does not know.
        DataIntegrityError: it is one, and damaged or cut off; says at which line.
    """
    lines = content.decode(errors="replace").splitlines()
    parsed = [_parse(line, number, len(lines), source) for number, line in enumerate(lines, start=1)]
    _check_head(parsed[0] if parsed else {}, source)
    last = parsed[-1]
    if last.get("kind") != "end":
        raise _cut_off(source, f"line {len(lines)} is its last one and not the line that ends a file of results")
    if last.get("lines") != len(lines) - 1:
        raise _damaged(
            source, len(lines), f"it counts {last.get('lines')} lines before it, and there are {len(lines) - 1}"
        )
    try:
        return _assemble(parsed, source)
    except _LineError as error:
        raise _damaged(source, error.number, f"{type(error.cause).__name__}: {error.cause}") from error


def is_results(content: bytes) -> bool:
    """True if a file says of itself that it is one of results, of whatever version."""
    return FAMILY.encode() in content.partition(b"\n")[0]


class _LineError(Exception):
    def __init__(self, number: int, cause: Exception) -> None:
        super().__init__(number, cause)
        self.number, self.cause = number, cause


def _parse(line: str, number: int, lines: int, source: str) -> dict[str, Any]:
    try:
        record = json.loads(line)
        if isinstance(record, dict):
            return record
        raise ValueError("not an object")
    except ValueError as error:
        if number == 1:
            return {}  # `_check_head` says that it is no file of results
        if number == lines:
            raise _cut_off(source, f"line {number}, its last, is not whole") from error
        raise _damaged(source, number, "it is not JSON") from error


def _check_head(head: dict[str, Any], source: str) -> None:
    schema = str(head.get("schema", ""))
    if not schema.startswith(FAMILY):
        raise UsageError(
            f"{source} is not a file of bench results: its first line names no schema {FAMILY}*.",
            "Give the <collective>.jsonl that `python -m workloads bench` wrote, or its folder.",
        )
    if schema != SCHEMA:
        raise UsageError(
            f"{source} has schema {schema}; this version of the workloads reads {SCHEMA}.",
            "Read it with the version that wrote it, or measure again with this one.",
        )


def _assemble(parsed: Sequence[dict[str, Any]], source: str) -> Results:
    found: list[tuple[Stage, Conditions, list[Row], list[Link]]] = []
    verdicts, judgements, suspects = {}, {}, []
    for number, record in enumerate(parsed[1:-1], start=2):
        try:
            if record["kind"] == "stage":
                stage = Stage(name=record["name"], nodes=tuple(record["nodes"]), algorithm=record["algorithm"])
                found.append((stage, _conditions(record["environment"]), [], []))
                for kept, name in ((verdicts, "verdict"), (judgements, "judgement")):
                    if record[name] is not None:
                        kept[stage.name] = record[name]
            elif record["kind"] == "row":
                found[-1][2].append(_row(record))
            elif record["kind"] == "link":
                found[-1][3].append(Link(ranks=tuple(record["ranks"]), seconds=record["seconds"]))
            elif record["kind"] == "suspect":
                suspects.append(Suspect(kind=record["part"], **{name: record[name] for name in _SUSPECT}))
            else:
                raise ValueError(f"a line of kind {record['kind']!r} has no place here")
        except (KeyError, TypeError, ValueError, IndexError) as error:
            raise _LineError(number, error) from error
    if not found or not all(rows for _, _, rows, _ in found):
        raise _LineError(len(parsed), ValueError("it ends a file with a stage that has no rows"))
    measured = tuple(
        Measured(stage=stage, conditions=conditions, rows=tuple(rows), links=tuple(links), logs={})
        for stage, conditions, rows, links in found
    )
    stopped = str(parsed[-1]["stopped"])
    remarks = Remarks(verdicts=verdicts, judgements=judgements, suspects=tuple(suspects), stopped=stopped)
    return Results(source=source, measured=measured, remarks=remarks)


def _conditions(record: dict[str, Any]) -> Conditions:
    values: dict[str, Any] = {field.name: record[field.name] for field in dataclasses.fields(Conditions)}
    values |= {name: tuple(value) for name, value in values.items() if isinstance(value, list)}
    return Conditions(**values)


def _row(record: dict[str, Any]) -> Row:
    return Row(
        **{name: record[name] for name in ("op", "size", "count", "redop", "root", "factor")},
        dtype=record["type"],
        out_of_place=_timing(record["out_of_place"]),
        in_place=_timing(record["in_place"]),
    )


def _timing(record: dict[str, Any]) -> Timing:
    alone = record["blocking"]
    if record["time_us"] <= 0:
        raise ValueError(f"a time of {record['time_us']} microseconds")
    return Timing(
        seconds=record["time_us"] / 1e6,
        rank_seconds=tuple(value / 1e6 for value in record["rank_time_us"]),
        blocking=None
        if alone is None
        else Percentiles(
            calls=alone["calls"],
            slowest_rank=alone["slowest_rank"],
            **{name: alone[f"{name}_us"] / 1e6 for name in ("p50", "p95", "p99", "max")},
        ),
        **{name: record[name] for name in ("iterations", "slowest_rank", "wrong")},
    )


def _cut_off(source: str, how: str) -> DataIntegrityError:
    return DataIntegrityError(
        f"{source} is cut off: {how}.", "Copy it again from the runs bucket (bench/<name>), or measure again."
    )


def _damaged(source: str, number: int, how: str) -> DataIntegrityError:
    return DataIntegrityError(
        f"{source} is damaged at line {number}: {how}.",
        "Copy it again from the runs bucket (bench/<name>), or measure again.",
    )
