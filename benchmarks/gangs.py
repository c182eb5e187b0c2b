"""How the queue treats jobs whose nodes must come together: `python -m benchmarks.gangs`.

The real Kueue on the emulated platform, each part on one of its own. `orders`: gangs of two nodes, while Google gives
nodes, refuses, ends a booking or takes nodes back in a random order; none may be placed by halves, which is judged by
the API server's own record of what happened. `teams`: jobs of three teams over four nodes, which must respect quota
and priority. `destroys`: the whole stack taken away while jobs run, or wait for nodes, quota or a queue. `scale`:
500 jobs of two pods each, made at once, over queues of different sizes, and what each step takes. Times are those of
this machine, and of an emulated Google that brings nodes within a second.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from benchmarks.gang_trials import destroys, orders, scale, stage, teams
from benchmarks.harness import command
from benchmarks.harness.figures import Record, conditions, read

RESULTS = Path(__file__).with_suffix(".json")

PARTS = ("orders", "teams", "destroys", "scale")


def main(given: Sequence[str] | None = None) -> int:
    """Measure; returns the exit code."""
    parser = command.parser(RESULTS, __doc__)
    command.add_parts(parser, PARTS)
    parser.add_argument("--gangs", type=int, default=300, metavar="N", help="gangs of `orders` (300)")
    parser.add_argument("--jobs", type=int, default=50, metavar="N", help="jobs of `teams` (50)")
    parser.add_argument("--destroys", type=int, default=50, metavar="N", help="destroys of `destroys` (50)")
    parser.add_argument("--nodes", type=int, nargs="+", default=[10, 100, 1000], metavar="N", help="sizes of `scale`")
    parser.add_argument("--seed", type=int, default=1, metavar="N", help="of all but `scale` (1)")
    chosen = parser.parse_args(given)
    parts, wrong = chosen.parts or PARTS, list[str]()
    found: Record = read(chosen.results) | {"conditions": conditions()}
    if "orders" in parts:
        with stage.running(orders.SETTINGS, orders.WATCHED) as platform:
            found["orders"], wrong = orders.measure(platform, chosen.gangs, chosen.seed)
    if "teams" in parts:
        with stage.running(teams.SETTINGS, teams.WATCHED) as platform:
            found["teams"], against = teams.measure(platform, chosen.jobs, chosen.seed)
        wrong += against
    if "destroys" in parts:
        with stage.running(destroys.SETTINGS, ()) as platform:
            found["destroys"], left = destroys.measure(platform, chosen.destroys, chosen.seed)
        wrong += left
    for nodes in chosen.nodes if "scale" in parts else ():
        with stage.running(scale.settings(nodes), scale.WATCHED) as platform:
            found.setdefault("scale", {})[str(nodes)] = scale.measure(platform, nodes)
    return command.conclude(chosen.results, found, wrong)


if __name__ == "__main__":
    command.run(main)
