"""`python -m workloads idle`: lists jobs and RayClusters whose GPUs do next to nothing, and ends them if asked to."""

from __future__ import annotations

import argparse
import re
import sys
import time
from collections import Counter
from collections.abc import Sequence

from rich.table import Column

from workloads import tables
from workloads.cluster import stack
from workloads.cluster.stack import DeployedStack
from workloads.errors import EXIT_OK, UsageError, WorkloadError
from workloads.idle import ending, verdict
from workloads.idle.verdict import Finding, Question
from workloads.jobs.command import duration
from workloads.reporting.progress import counted

LEAST_SECONDS, MOST_SECONDS = 300.0, 24 * 3600.0
"""Shorter, and it is a matter of a few samples, of 10 s in each minute; longer, and the night is over."""

_WATCH_SECONDS = 60.0  # no sample comes more often
_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0}


def add_idle_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `python -m workloads idle`."""
    stack.add_stack_arguments(parser)
    parser.add_argument(
        "--under", default="5", metavar="PERCENT", help="idle: none of its GPUs was ever as busy as this (%(default)s)"
    )
    parser.add_argument(
        "--for", dest="lasting", default="30m", metavar="TIME", help="... in the last 30m, 2h or the like (%(default)s)"
    )
    parser.add_argument(
        "--end",
        action="store_true",
        help="end what is idle: stop jobs, suspend users' RayClusters and plain Jobs; asks nothing more",
    )
    parser.add_argument(
        "--watch", action="store_true", help="look again every minute, until Ctrl-C; print what changes"
    )


def run_idle(args: argparse.Namespace) -> int:
    """Look once, or until Ctrl-C; returns the exit code."""
    question = Question(under=_percent(args.under), seconds=_seconds(args.lasting))
    deployed = stack.find(args)
    found = verdict.look(deployed, question, time.time())
    _report(found, deployed, args)
    code = _end(found, deployed, args)
    told = {str(one.holder): one.verdict for one in found}
    while args.watch:
        time.sleep(_WATCH_SECONDS)
        try:
            found = verdict.look(deployed, question, time.time())
        except WorkloadError as error:  # of one look, which the next makes good
            _tell(f"not seen: {error}")
            continue
        for one in found:
            if told.pop(str(one.holder), "") != one.verdict:
                _tell(f"{one.holder}: {_judged(one)}")
        for gone in told:
            _tell(f"{gone}: has no GPUs any more")
        told = {str(one.holder): one.verdict for one in found}
        _end(found, deployed, args)
    return code


def _report(found: Sequence[Finding], deployed: DeployedStack, args: argparse.Namespace) -> None:
    """One line for each holder of GPUs, or one for all if none of them idles."""
    if not any(one.verdict == "idle" for one in found):
        print(_nothing_idle(found, args))
        return
    whole = [Column(name, no_wrap=True) for name in ("WHOSE", "GPUS", "NODES", "FOR", "BUSIEST", "USD AN HOUR")]
    table = tables.plain(*whole, "JUDGED", "--end WOULD")
    now = time.time()
    for one in sorted(found, key=lambda one: one.verdict != "idle"):
        holder = one.holder
        table.add_row(
            str(holder),
            str(holder.gpus),
            str(len(holder.nodes)),
            "" if holder.began is None else duration(now - holder.began),
            "" if one.busiest is None else f"{one.busiest} %",
            _usd_an_hour(one, deployed),
            _judged(one),
            ending.way(holder, deployed).says if one.verdict == "idle" else "",
        )
    tables.show(table)


def _nothing_idle(found: Sequence[Finding], args: argparse.Namespace) -> str:
    if not found:
        return "nobody has GPUs"
    counts = Counter(one.verdict for one in found)
    unseen = "".join(f"; {one.holder}: {one.reason}" for one in found if one.verdict == "not seen")
    told = ", ".join(f"{count} {name}" for name, count in counts.items())
    whose = counted(len(found), "holder")
    return f"no GPUs idle, under {args.under.rstrip('%')} % for {args.lasting}, of {whose}: {told}{unseen}"


def _judged(one: Finding) -> str:
    return f"{one.verdict}: {one.reason}" if one.reason else one.verdict


def _usd_an_hour(one: Finding, deployed: DeployedStack) -> str:
    """The most that its nodes cost, whoever else is on them; empty where that is not known."""
    prices = [deployed.environment.node_hour_usd(queued=queued) for queued in one.holder.nodes.values()]
    known = [price for price in prices if price is not None]
    return f"{sum(known):,.2f}" if len(known) == len(prices) else ""


def _end(found: Sequence[Finding], deployed: DeployedStack, args: argparse.Namespace) -> int:
    """End what is idle, if that is wanted; the exit code of the first that could not be."""
    code = EXIT_OK
    for one in found if args.end else ():
        act = ending.way(one.holder, deployed).act
        if one.verdict != "idle" or act is None:
            continue
        _tell(f"ending {one.holder}, whose {counted(one.holder.gpus, 'GPU')} idle")
        try:
            undone = act(deployed, one.holder, stack.flags(args))
            print(f"ended {one.holder}" + (f"; {undone}" if undone else ""), flush=True)
        except WorkloadError as error:
            print(f"{one.holder} is not ended: {error}", file=sys.stderr, flush=True)
            code = code or error.exit_code
    return code


def _tell(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", flush=True)


def _percent(text: str) -> float:
    try:
        found = float(text.removesuffix("%").strip())
    except ValueError:
        found = 0.0
    if not 0 < found <= 100:
        raise UsageError(f"--under is {text}; it must be a percentage above 0 and at most 100.", "Write --under 5.")
    return found


def _seconds(text: str) -> float:
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([smh])", text.strip())
    seconds = float(found[1]) * _UNITS[found[2]] if found else 0.0
    if not LEAST_SECONDS <= seconds <= MOST_SECONDS:
        raise UsageError(
            f"--for is {text}; it must be a number with s, m or h, from 5m to 24h.", "Write --for 30m or --for 2h."
        )
    return seconds
