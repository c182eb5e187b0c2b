"""What is shown of a measurement: its tables while they grow, then what they and NCCL's logs are taken for."""

from __future__ import annotations

from collections.abc import Sequence

from workloads.nccl.definitions import bandwidth
from workloads.nccl.definitions.bandwidth import Row
from workloads.nccl.definitions.stages import Stage
from workloads.nccl.results import findings, records, report, suspects
from workloads.nccl.results.findings import Finding
from workloads.nccl.results.measured import Conditions, Measured
from workloads.reporting import progress


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


def show_findings(measured: Sequence[Measured]) -> list[Finding]:
    """What the stages are taken for, once it is said; and who is slow."""
    judged = _judged(measured)
    for one in judged:
        for line in report.verdict_lines(one.verdict.as_record(), one.judgement.as_record()):
            progress.note(f"# {one.measured.stage.name}: {line.removeprefix('# ')}")
    for suspect in suspects.suspects(measured):
        progress.note(f"# slow: {suspect.text}")
    return judged


def _judged(measured: Sequence[Measured]) -> list[Finding]:
    """What the stages on NCCL are taken for; gloo promises nothing."""
    return [
        findings.find(one, one.conditions.rdma_nics, one.conditions.promised_rdma and one.conditions.nodes > 1)
        for one in measured
        if one.conditions.backend == "nccl"
    ]
