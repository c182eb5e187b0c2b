"""What a ladder's order and its place are worth, in a made-up market: `python -m benchmarks.ladders`.

A job a day asks the rungs of its ladder in one order, as GKE does: from the top, some minutes each; it skips for a
while a rung that had no node. It pays for its nodes until it is done. If nodes are taken from it, it asks from the top
again and continues from its last checkpoint. `orders` compares, on the same days, every fixed order, the order that
`oasis_stack/forecast/proposal.py` makes for the day, and the likeliest rung first, by forecasts that are exact or off
by some. `places`: each job goes to one of several places, by chance or to the one where a node is likeliest.

**Nobody publishes when Google has H200s**, so the market is an invention: seasons of some weeks, in each of which every
rung has spells with nodes and without, of its own lengths, within the ranges given below as constants. The figures tell
how much an order can matter and how exact a forecast must be for that, not what anybody will wait or pay. No clock is
read: the figures are the same on every machine.
"""

from __future__ import annotations

import argparse
import bisect
import itertools
import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, quantiles

from matplotlib.figure import Figure

from benchmarks.harness import command, figures
from benchmarks.harness.figures import Record
from oasis_stack.facts import machine, prices
from oasis_stack.facts.capacity_rules import Mode
from oasis_stack.forecast.proposal import LOST_HOURS, Rung, cheapest_order

RESULTS = Path(__file__).with_suffix(".json")
PLOT = RESULTS.parents[1] / "docs" / "ladders.png"

MODES: tuple[Mode, ...] = ("reservation", "flex-start", "spot")
"""Rungs: nodes that are paid for anyway and shared with others, and two ways to buy more."""

SEASON_DAYS = (14, 60)
SHARES = {"reservation": (0.05, 0.6), "flex-start": (0.02, 0.98), "spot": (0.02, 0.98)}
"""Share of a season in which a rung has nodes."""
SPELL_HOURS = {"reservation": (4.0, 48.0), "flex-start": (1.0, 24.0), "spot": (0.5, 12.0)}
"""Mean length of a season's spells. Spot nodes are reclaimed when their spell ends; other nodes stay."""
SPOT_PRICE_FACTOR = (0.6, 1.4)
"""Range of the factor between a season's Spot price and today's: Google may change it up to once a day (Compute Engine
documentation, "Spot VMs")."""

JOB_HOURS = 24.0
"""Work of a job."""

ATTEMPT_HOURS = 0.05
"""How long GKE tries a rung before the next: about 3 minutes for flex-start (google/skills, gke-compute-classes,
compute-class-gotchas-and-cuds.md); that it takes as long for the others is a guess."""

BACKOFF_HOURS, MOST_BACKOFF_HOURS, FORGOTTEN_HOURS = 5 / 60, 0.5, 3.0
"""How long a rung without a node is skipped, at first and at most. The time doubles with each failure, until the rung
had none for the last of these (kubernetes/autoscaler, defaults of `--initial-node-group-backoff-duration`,
`--max-node-group-backoff-duration` and `--node-group-backoff-reset-timeout`)."""

PROPOSED, LIKELIEST = "proposed", "likeliest first"
"""Prefixes of the names of the orders that are made for the day."""

PLACES = (1, 2, 4, 8)
"""Numbers of places: nine zones have H200s."""

MACHINE = machine.MACHINES["a3-ultragpu-8g"]

ERRORS = {"exact": 0.0, "off by 0.2": 0.2, "off by 0.5": 0.5}
"""Forecasts, by the standard deviation of the error added to a likelihood and to the logarithm of an uptime."""


@dataclass(frozen=True)
class Season:
    """Some weeks of one rung."""

    begins: float
    """Hours since the first day."""
    share: float
    spell_hours: float
    node_hour_usd: float


@dataclass(frozen=True)
class Supply:
    """One rung over all days."""

    mode: Mode
    seasons: Sequence[Season]
    changes: Sequence[float]
    """When spells begin, in hours: those with nodes at even indices, those without at odd ones."""

    def season(self, hour: float) -> Season:
        """The season at a given time."""
        return self.seasons[bisect.bisect(self.seasons, hour, key=lambda season: season.begins) - 1]

    def has_nodes(self, hour: float) -> bool:
        """Whether nodes are available."""
        return bisect.bisect(self.changes, hour) % 2 == 1

    def taken_at(self, hour: float) -> float:
        """When nodes obtained now are reclaimed."""
        return self.changes[bisect.bisect(self.changes, hour)] if self.mode == "spot" else math.inf

    def likelihood(self, hour: float, error: float, noise: random.Random) -> float:
        """The forecast for nodes requested now: half-way between this moment and the season."""
        told = 0.5 * self.has_nodes(hour) + 0.5 * self.season(hour).share + noise.gauss(0, error)
        return min(1.0, max(0.0, told))

    def rung(self, hour: float, error: float, noise: random.Random) -> Rung:
        """The forecast for the nodes themselves."""
        season = self.season(hour)
        uptime = 2 * season.share * season.spell_hours * math.exp(noise.gauss(0, error))
        return Rung(
            name=self.mode,
            node_hour_usd=season.node_hour_usd,
            uptime_hours=uptime if self.mode == "spot" else None,
        )


@dataclass
class Job:
    """What became of one job."""

    waited: float = 0.0
    """Hours until its first step."""
    usd: float = 0.0
    """Cost of one node."""
    losses: int = 0
    """How often its nodes were reclaimed."""


Market = Mapping[str, Supply]
"""One place: its rungs by name."""

Order = Callable[[float], Sequence[str]]
"""Names of the rungs, from the top, at a given time."""


def supply(mode: Mode, hours: float, draw: random.Random) -> Supply:
    """Draw one rung."""
    price = prices.gpu_node(MACHINE, mode, prices.REGION)
    usd = 0.0 if mode == "reservation" or price is None else price.usd
    seasons: list[Season] = []
    begins, changes = 0.0, [0.0]
    while begins < hours:
        factor = draw.uniform(*SPOT_PRICE_FACTOR) if mode == "spot" else 1.0
        season = Season(begins, draw.uniform(*SHARES[mode]), draw.uniform(*SPELL_HOURS[mode]), usd * factor)
        seasons.append(season)
        begins += 24 * draw.uniform(*SEASON_DAYS)
        while changes[-1] < begins:
            share = season.share if len(changes) % 2 else 1 - season.share
            changes.append(changes[-1] + draw.expovariate(1 / (2 * share * season.spell_hours)))
    return Supply(mode, seasons, [*changes, math.inf])


def place(days: int, seed: int) -> Market:
    """Draw one place, with extra days for the last jobs."""
    draw = random.Random(seed)
    return {mode: supply(mode, 24.0 * (days + 400), draw) for mode in MODES}


def run(market: Market, start: float, order: Sequence[str]) -> Job:
    """One job from its submission to its end."""
    job, hour, left = Job(), start, JOB_HOURS
    backoff: dict[str, tuple[float, float]] = {}
    began = False
    while left > 0:
        hour, rung = _nodes(market, hour, order, backoff)
        if not began:
            job.waited, began = hour - start, True
        done, taken = hour + left, market[rung].taken_at(hour)
        ends = min(done, taken)
        job.usd += (ends - hour) * market[rung].season(hour).node_hour_usd
        if taken < done:
            job.losses += 1
            left -= max(0.0, taken - hour - LOST_HOURS)
        else:
            left = 0.0
        hour = ends
    return job


def _nodes(
    market: Market, hour: float, order: Sequence[str], backoff: dict[str, tuple[float, float]]
) -> tuple[float, str]:
    """When nodes are available, and on which rung. `backoff`: until when each is skipped, and how long in all."""
    while True:
        asked = [name for name in order if backoff.get(name, (0.0, 0.0))[0] <= hour]
        for name in asked:
            if market[name].has_nodes(hour):
                return hour, name
            hour += ATTEMPT_HOURS
            until, last = backoff.get(name, (-math.inf, 0.0))
            long = min(2 * last, MOST_BACKOFF_HOURS) if hour - until < FORGOTTEN_HOURS else BACKOFF_HOURS
            backoff[name] = (hour + long, long)
        hour = max(hour, min(backoff.get(name, (0.0, 0.0))[0] for name in order))


def orders(market: Market, seed: int) -> dict[str, Order]:
    """Every fixed order, plus the proposed order and the one by likelihood for each forecast."""

    def fixed(names: Sequence[str]) -> Order:
        return lambda _: names

    def proposed(error: float) -> Order:
        noise = random.Random(f"{seed} {error}")
        return lambda hour: [
            rung.name for rung in cheapest_order([one.rung(hour, error, noise) for one in market.values()])
        ]

    def likeliest(error: float) -> Order:
        noise = random.Random(f"{seed} {error}")
        return lambda hour: sorted(market, key=lambda name: -market[name].likelihood(hour, error, noise))

    found = {", ".join(names): fixed(names) for names in itertools.permutations(market)}
    for name, error in ERRORS.items():
        found[f"{PROPOSED}, forecast {name}"] = proposed(error)
        found[f"{LIKELIEST}, forecast {name}"] = likeliest(error)
    return found


def measure(days: int, seed: int) -> Record:
    """Run a job a day in each order, in one market."""
    market, starts, found = place(days, seed), _starts(days, seed), Record()
    for name, order in orders(market, seed).items():
        jobs = [run(market, start, order(start)) for start in starts]
        found[name] = {
            "hours to the first step": _summary([job.waited for job in jobs]),
            "usd of a node": _summary([job.usd for job in jobs]),
            "losses of nodes, a job": round(fmean(job.losses for job in jobs), 2),
        }
    return found


def _starts(days: int, seed: int) -> list[float]:
    draw = random.Random(f"starts {seed}")
    return [24 * day + draw.uniform(0, 24) for day in range(days)]


def choose_place(days: int, seed: int) -> Record:
    """Run a job a day in one of several places: hours until its first step, by number of places and by who chooses."""
    markets, starts = [place(days, 1000 * seed + number) for number in range(max(PLACES))], _starts(days, seed)
    errors: dict[str, float] = {"by chance": math.inf, **{f"forecast {name}": error for name, error in ERRORS.items()}}
    found: Record = {}
    for name, error in errors.items():
        noise = random.Random(f"{seed} {error}")
        for count in PLACES:
            waits: list[float] = []
            for start in starts:
                scores = [_score(market, start, error, noise) for market in markets[:count]]
                chosen = markets[scores.index(max(scores))]
                waits.append(run(chosen, start, MODES).waited)
            found.setdefault(name, {})[f"{count} places"] = _summary(waits)
    return found


def _score(market: Market, hour: float, error: float, noise: random.Random) -> float:
    """Likelihood that some rung of a place has nodes; a random draw if nothing is known."""
    if math.isinf(error):
        return noise.random()
    return 1 - math.prod(1 - supply.likelihood(hour, error, noise) for supply in market.values())


def _summary(values: Sequence[float]) -> Record:
    tenths = quantiles(values, n=10)
    return {"mean": round(fmean(values), 2), "median": round(tenths[4], 2), "a tenth is over": round(tenths[8], 2)}


def dearer(markets: Sequence[Record]) -> Record:
    """For each order, its cost in each market as a multiple of that market's cheapest fixed order."""
    costs = [{name: of["usd of a node"]["mean"] for name, of in found.items()} for found in markets]
    least = [min(usd for name, usd in market.items() if not name.startswith((PROPOSED, LIKELIEST))) for market in costs]
    return {
        name: figures.spread([market[name] / cheapest for market, cheapest in zip(costs, least, strict=True)])
        for name in costs[0]
    }


def plot(costs: Record, places: Record, file: Path) -> None:
    """Plot what each order costs, and the wait over the number of places."""
    figure = Figure(figsize=(10, 4.5), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=(3, 2))
    names = sorted(costs, key=lambda name: -costs[name]["median"])
    middle = [costs[name]["median"] for name in names]
    reach = [[abs(costs[name][end] - costs[name]["median"]) for name in names] for end in ("least", "most")]
    colours = ["tab:orange" if name.startswith(PROPOSED) else "tab:grey" for name in names]
    left.barh(names, middle, xerr=reach, capsize=3, color=colours)
    left.set(xlabel="USD, times those of the cheapest fixed order: median and range of the markets")
    for name, of in places.items():
        right.plot(PLACES, [of[f"{count} places"]["mean"] for count in PLACES], marker="o", label=name)
    right.set(xlabel="places to choose from", ylabel="hours to the first step, mean", ylim=(0, None))
    right.set_xticks(PLACES)
    right.legend(fontsize="small", frameon=False)
    for axes in (left, right):
        axes.grid(alpha=0.3)
    figure.savefig(file, dpi=150)


def main(given: Sequence[str] | None = None) -> int:
    """Simulate; returns the exit code."""
    parser = command.parser(RESULTS, __doc__)
    parser.add_argument("--days", type=int, default=1000, metavar="N", help="days, with a job on each (1000)")
    parser.add_argument("--markets", type=int, default=20, metavar="N", help="markets, each of so many days (20)")
    parser.add_argument("--seed", type=int, default=1, metavar="N", help="seed of the first market (1)")
    parser.add_argument("--plot", type=Path, default=PLOT, metavar="FILE", help="(docs/ladders.png)")
    chosen: argparse.Namespace = parser.parse_args(given)
    markets = [measure(chosen.days, seed) for seed in range(chosen.seed, chosen.seed + chosen.markets)]
    costs, places = dearer(markets), choose_place(chosen.days, chosen.seed)
    plot(costs, places, chosen.plot)
    found = {
        "date": figures.today(),
        "days of a market": chosen.days,
        "seed of the first": chosen.seed,
        "of the first market": markets[0],
        "cost, times that of the cheapest fixed order": costs,
        "hours to the first step, by place": places,
    }
    return command.conclude(chosen.results, found)


if __name__ == "__main__":
    command.run(main)
