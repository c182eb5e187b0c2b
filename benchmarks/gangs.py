"""How the queue treats jobs whose nodes must come together: `python -m benchmarks.gangs`.

The real Kueue on the emulated platform, each part on a platform of its own. `orders`: gangs of two nodes, while Google
gives nodes, refuses, ends a booking or takes nodes back in a random order; none may be placed in part, judged by the
API server's own record of what happened. `teams`: jobs of three teams over four nodes, which must respect quota and
priority. `destroys`: the whole stack taken away while jobs run, or wait for nodes, quota or a queue. `ledger`: what
trainings of one node say that they used, beside the lives of their nodes. `scale`: many jobs of two nodes at once, in
queues of different sizes, with each step of each job timed, as a table and a plot. Times are those of this machine, and
of an emulated Google that brings nodes within a second. Each part is written as soon as it is done, and each of the
`destroys`.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from benchmarks.gang_trials import destroys, ledger, orders, scale, stage, teams
from benchmarks.harness import command
from benchmarks.harness.figures import Record, conditions, read, say, today, write

RESULTS = Path(__file__).with_suffix(".json")

PLOT = RESULTS.parents[1] / "docs" / "queue.png"

PARTS = ("orders", "teams", "destroys", "ledger", "scale")


def main(given: Sequence[str] | None = None) -> int:
    """Measure; returns the exit code."""
    parser = command.parser(RESULTS, __doc__)
    command.add_parts(parser, PARTS)
    parser.add_argument("--gangs", type=int, default=300, metavar="N", help="gangs of `orders` (300)")
    parser.add_argument("--jobs", type=int, default=50, metavar="N", help="jobs of `teams` (50)")
    parser.add_argument(
        "--destroys",
        type=int,
        default=50,
        metavar="N",
        help="destroys of `destroys`, those of an earlier run included (50)",
    )
    parser.add_argument("--trainings", type=int, default=6, metavar="N", help="trainings of `ledger` (6)")
    parser.add_argument(
        "--nodes", type=int, nargs="+", default=[10, 100, 1000], metavar="N", help="sizes of `scale` (10 100 1000)"
    )
    parser.add_argument("--pods", type=int, default=1000, metavar="N", help="pods of `scale`, two a job (1000)")
    parser.add_argument("--plot", type=Path, default=PLOT, metavar="FILE", help="plot of `scale` (docs/queue.png)")
    parser.add_argument("--seed", type=int, default=1, metavar="N", help="seed of all parts (1)")
    chosen = parser.parse_args(given)
    measures = {
        "orders": (orders.SETTINGS, orders.WATCHED, orders.measure, chosen.gangs),
        "teams": (teams.SETTINGS, teams.WATCHED, teams.measure, chosen.jobs),
        "ledger": (ledger.SETTINGS, ledger.WATCHED, ledger.measure, chosen.trainings),
    }
    wholes = {"destroys": _destroys, "scale": _scale}
    found: Record = read(chosen.results) | {"conditions": conditions()}
    wrong: list[str] = []
    for part in chosen.parts or PARTS:
        if part in wholes:
            wrong += wholes[part](chosen, found)
            continue
        settings, watched, measure, count = measures[part]
        with stage.running(settings, watched) as platform:
            found[part], problems = measure(platform, count, chosen.seed)
        wrong += problems
        write(chosen.results, found)
    return command.conclude(chosen.results, found, wrong)


def _destroys(chosen: argparse.Namespace, found: Record) -> list[str]:
    """Destroy until the requested number is reached, and keep each result; returns what is wrong."""
    known = found.get("destroys", {}).get("each", [])
    each = [one for one in known if one["seed"] == chosen.seed][: chosen.destroys]
    if len(each) < chosen.destroys:
        with stage.running(destroys.SETTINGS, ()) as platform:
            for one in destroys.trials(platform, range(len(each), chosen.destroys), chosen.seed):
                each.append(one)
                found["destroys"] = destroys.summary(each)
                write(chosen.results, found)
                say(f"{len(each)} of {chosen.destroys} destroys, the last in {one.get('seconds', 0):.0f} s")
    return [problem for one in each for problem in one["wrong"]]


def _scale(chosen: argparse.Namespace, found: Record) -> list[str]:
    """Measure and keep one size after another, and draw all; returns what is wrong."""
    wrong: list[str] = []
    found["scale"] = sizes = {"date": today(), "pods": chosen.pods, "pods of a job": scale.GANG}
    for nodes in chosen.nodes:
        with stage.running(scale.settings(nodes), scale.WATCHED) as platform:
            sizes[f"{nodes} nodes"], problems = scale.measure(platform, nodes, chosen.pods)
        wrong += problems
        write(chosen.results, found)
    scale.plot(sizes, chosen.plot)
    return wrong


if __name__ == "__main__":
    command.run(main)
