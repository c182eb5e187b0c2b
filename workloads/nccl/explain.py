"""`python -m workloads explain`: explains a log of the kernel, of NCCL or of a worker, and says what to do. No Ray."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rich.table import Table

from workloads import tables
from workloads.errors import EXIT_OK, UsageError
from workloads.nccl.logs import faults, path, verdict
from workloads.nccl.logs.faults import LoggedError

DESCRIPTION = """\
What the errors in logs of the kernel, of NCCL or of workers mean, and what to do: each kind once, with the line that
shows it first. Where a rank only saw another one go, the cause is the other one's own line, if a log has it."""

EPILOG = """\
examples:
  explain logs/*.log                           the logs of all ranks, which bench and train's check of the fabric keep
  gcloud compute instances get-serial-port-output NODE --zone ZONE | python -m workloads explain - --node NODE
                                               the Xids of a node, which its kernel writes to the console"""

WIDTH = 120
"""Columns of the table if the output is not a terminal."""

_LONGEST = 160
"""Maximum length of a quoted log line."""

_HOST = re.compile(r"([\w.-]+):\d+:\d+ \[\s*\d+\s*\] |^\w{3} [ \d]\d [\d:]{8} (\S+) kernel: ", re.MULTILINE)
"""Writer of a line: `host:pid:tid [device]` is NCCL's, where the host is a pod; syslog names the node."""

_RANK = re.compile(r"\[[Rr]ank ?(\d+)\]")
_LOG_RANK = re.compile(r"rank(\d+)\.log$")
"""The rank as torch writes it before a line, and in the names of kept logs."""

_LAUNCHER = re.compile(r"^\(\w+ pid=[^)]*\) ")
"""Prefix that Ray writes before a worker's line."""

_COMMAND = re.compile(r"`([^`]*\bNODE\b[^`]*)`")
_NODE, _ZONE = re.compile(r"\bNODE\b"), re.compile(r"\bZONE\b")

_NODE_OF_POD = "NODE=$(kubectl get pods -A --field-selector metadata.name={} -o jsonpath='{{.items[*].spec.nodeName}}')"
_ZONE_OF_NODE = "ZONE=$(kubectl get node {} -o jsonpath='{{.metadata.labels.topology\\.kubernetes\\.io/zone}}')"


@dataclass(frozen=True, kw_only=True)
class Found:
    """One error on one line."""

    place: str
    """Line number, such as `12`; preceded by the file's name if there are several."""
    line: str
    """The line as the log has it."""
    rank: str
    """Rank that wrote it; empty if neither the line nor the file's name says."""
    host: str
    """Pod or node that wrote it; empty if neither says."""
    fault: LoggedError


@dataclass
class Kind:
    """All errors of one kind."""

    first: Found
    places: list[str] = field(default_factory=list)
    devices: dict[str, None] = field(default_factory=dict)


def add_explain_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `python -m workloads explain`."""
    parser.description, parser.epilog = DESCRIPTION, EPILOG
    parser.add_argument("logs", nargs="+", metavar="FILE", help="a log, or - for standard input")
    parser.add_argument("--node", metavar="NAME", default="", help="node that wrote the logs (as their lines say)")
    parser.add_argument("--zone", metavar="ZONE", default="", help="zone of that node (asked of Kubernetes)")


def run_explain(args: argparse.Namespace) -> int:
    """Print the errors in the logs; returns the exit code, 0.

    Raises:
        UsageError: a file cannot be read.
    """
    texts = {name: _read(name) for name in args.logs}
    for name, text in texts.items():
        if path.read(text).recognised and (seen := verdict.read({0: text}, 0, False)).path != "unknown":
            print(f"{name}: {seen.line()}")
    found = [one for name, text in texts.items() for one in find(name, text, several=len(texts) > 1)]
    # A program's own errors say nothing about the fabric: they are shown if a rank was missed.
    missed = any(one.fault.follows for one in found)
    shown = [one for one in found if missed or one.fault.name not in faults.PROGRAM_ENDS]
    if not shown:
        print(f"{', '.join(texts)}: no Xid and no error of NCCL")
        return EXIT_OK
    table, commands = _table(shown, args.node, args.zone)
    tables.show(table, WIDTH)
    for line in commands:
        print(line)
    return EXIT_OK


def find(name: str, text: str, several: bool = False) -> Iterator[Found]:
    """The errors of one log, line by line.

    Args:
        name: name of its file.
        text: the log.
        several: whether there are other logs, so that a line number alone does not identify the line.
    """
    named = _LOG_RANK.search(name)
    pods, nodes = ({match[group] for match in _HOST.finditer(text)} - {None} for group in (1, 2))
    for number, (line, errors) in enumerate(zip(text.splitlines(), faults.by_line(text), strict=True), 1):
        ended = None if errors else faults.of_program(line)
        for fault in errors or filter(None, [ended]):
            rank, host = _RANK.search(line), _HOST.search(line)
            # A kernel line without a name may be any node's, and does not belong to the pod whose log it is in.
            known = nodes if fault.name.startswith("Xid") else pods
            yield Found(
                place=f"{Path(name).name}:{number}" if several else str(number),
                line=_LAUNCHER.sub("", line.strip())[:_LONGEST],
                rank=rank[1] if rank else named[1] if named else "",
                host=(host[1] or host[2]) if host else next(iter(known)) if len(known) == 1 else "",
                fault=fault,
            )


def cause(found: Sequence[Found]) -> Found | None:
    """The first error that another rank's end does not explain, and which may thus explain the others."""
    return next((one for one in found if one.fault.severity == "error" and not one.fault.follows), None)


def _table(found: Sequence[Found], node: str, zone: str) -> tuple[Table, list[str]]:
    """The table, and the commands that its last column numbers."""
    kinds: dict[tuple[str, str], Kind] = {}
    for one in found:
        kind = kinds.setdefault((one.fault.name, one.fault.meaning), Kind(one))
        kind.places.append(one.place)
        kind.devices.update(dict.fromkeys(filter(None, [one.fault.device])))
    table = tables.plain()
    for heading, share in (("line", 2), ("what", 4), ("likely cause", 6), ("what to do", 8)):
        table.add_column(heading, ratio=share, overflow="fold")
    origin, said, commands = cause(found), dict[str, str](), list[tuple[str, str]]()

    def numbered(command: re.Match[str], host: str) -> str:
        commands.append((host, command[1]))
        return f"[{len(commands)}]"

    for kind in kinds.values():
        one = kind.first
        remedy = f"Act on line {origin.place}." if one.fault.follows and origin else one.fault.remedy
        if remedy in said:
            remedy = f"as for line {said[remedy]}"
        else:
            said[remedy] = one.place
            remedy = _COMMAND.sub(lambda command, host=one.host: numbered(command, host), remedy)
        table.add_row(_places(kind.places), _what(kind), _cause(one, origin), remedy)
    return table, list(_commands(commands, node, zone))


def _places(places: Sequence[str]) -> str:
    lines = list(dict.fromkeys(places))
    return lines[0] if len(lines) == 1 else f"{lines[0]} and {len(lines) - 1} more"


def _what(kind: Kind) -> str:
    fault = kind.first.fault
    if fault.name == faults.UNKNOWN_WARNING:
        return f"{fault.severity}: {fault.meaning}"
    on = f" on {', '.join(kind.devices)}" if kind.devices else ""
    quoted = f": {kind.first.line}" if fault.name in faults.PROGRAM_ENDS else ""
    return f"{fault.severity}: {fault.name}{on}{quoted}"


def _cause(one: Found, origin: Found | None) -> str:
    if one.fault.name == faults.UNKNOWN_WARNING:
        return "no warning that is known here"
    if not one.fault.follows:
        return one.fault.meaning
    if origin is None:
        return f"{one.fault.meaning}; no line here is a rank's own error: add the logs of the other ranks and nodes"
    who = f"rank {origin.rank}" if origin.rank else origin.host
    return f"{one.fault.meaning}: it follows from line {origin.place}{f', {who}' if who else ''}: {origin.fault.name}"


def _commands(commands: Sequence[tuple[str, str]], node: str, zone: str) -> Iterator[str]:
    """The commands by their numbers, for each host, preceded by the commands that find its node and zone.

    Args:
        commands: host and command of each; NODE and ZONE are placeholders.
        node: the node that the log comes from, if no line says.
        zone: zone of the node; empty to ask Kubernetes.
    """
    hosts = list(dict.fromkeys(host for host, _ in commands))
    for host in hosts:
        own = {number: command for number, (of, command) in enumerate(commands, 1) if of == host}
        known = host if host.startswith("gke-") else node if not host or len(hosts) == 1 else ""
        if not known and not host:
            yield "\nOn the node that wrote the log, which no line names; --node NAME fills it in:"
            yield from (f"[{number}] {command}" for number, command in own.items())
            continue
        name, place = known or "$NODE", zone or "$ZONE"
        yield f"\nOn {known or f'the node of {host}'}:"
        if not known:
            yield f"    {_NODE_OF_POD.format(host)}"
        if not zone and any(_ZONE.search(command) for command in own.values()):
            yield f"    {_ZONE_OF_NODE.format(name)}"
        for number, command in own.items():
            filled = _ZONE.sub(lambda _, place=place: place, _NODE.sub(lambda _, name=name: name, command))
            yield f"[{number}] {filled}"


def _read(name: str) -> str:
    if name == "-":
        return sys.stdin.read()
    try:
        return Path(name).read_text(errors="replace")
    except OSError as error:
        raise UsageError(
            f"{name} cannot be read: {error.strerror}.", "Give a file, or - for standard input."
        ) from error
