"""A forecast as text: which nodes are likely to come, at what price, and the age of each answer. It blocks nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from oasis_stack.facts.capacity_rules import CapacityEntry
from oasis_stack.forecast import advice
from oasis_stack.forecast.advice import Chance
from oasis_stack.forecast.answers import gather
from oasis_stack.forecast.ladder import Forecast, Subject
from oasis_stack.preflight.google import Google

PLAN_SECONDS, SECONDS = 5.0, 30.0
"""How long Google's answers are waited for: by `plan`, which everybody runs after each edit, and by all others."""


def lines(subject: Subject, google: Google, file: Path, seconds: float, *, brief: bool = False) -> list[str]:
    """Ask Google, and say what it expects.

    Args:
        subject: what of.
        google: that is asked.
        file: in which answers are kept for another time.
        seconds: after which nothing is waited for.
        brief: one line for each rung, and the order.
    """
    now = datetime.now(UTC)
    questions = subject.questions(google, now)
    found = gather(questions, file, seconds, now)
    if found.late == len(questions) and not google.is_signed_in:
        refused = f"no Google credentials were found within {seconds:g} s. Run `gcloud auth application-default login`."
        found = replace(found, refused=refused, late=0)
    forecast = Forecast(subject=subject, answers=found)
    rungs = enumerate(subject.entries, 1) if found.known else ()
    said = [line for number, entry in rungs for line in _rung(forecast, number, entry, brief)]
    if not brief:
        said += [*_windows(forecast), *_quotas(forecast), *_elsewhere(forecast)]
    return [*said, *_order(forecast), *_problems(forecast, len(questions), seconds)]


def _rung(forecast: Forecast, number: int, entry: CapacityEntry, brief: bool) -> Iterator[str]:
    head, subject = f"{number}. {entry.pool_name}", forecast.subject
    if entry.mode == "reservation":
        yield f"{head}: yours, so there is nothing to forecast; `make preflight` looks at it"
        return
    told = [(nodes, *forecast.chance(entry, subject.settings.zone, nodes)) for nodes in subject.sizes(entry)]
    parts = [f"{_nodes(nodes)} {_likely(chance)}{age}" for nodes, chance, age in told if chance]
    if parts:
        yield f"{head}: {'; '.join(parts)}"
    elif forecast.is_answered(entry):
        documented = "" if entry.mode == "spot" else " (it documents Spot only)"
        yield f"{head}: Google gives no forecast of {entry.mode} for {subject.gpu.machine_type}{documented}"
    else:
        yield f"{head}: no answer yet"
    if entry.mode == "spot" and not brief:
        yield from _spot_history(forecast)


def _spot_history(forecast: Forecast) -> Iterator[str]:
    taken, age = forecast.said(forecast.subject.preemptions().name, advice.preemption_rates)
    if taken:
        yield (
            f"   of the nodes that ended on {taken.day:%Y-%m-%d}, Google took back {taken.rate:.0%}; "
            f"{taken.lowest:.0%} to {taken.highest:.0%} a day in {taken.days} days{age}"
        )
    prices, age = forecast.said(forecast.subject.prices().name, advice.price_history)
    if prices:
        before = f", and {prices.first_usd:,.2f} on {prices.first:%Y-%m-%d}" if prices.first != prices.since else ""
        yield f"   list price {prices.usd:,.2f} USD a node and hour since {prices.since:%Y-%m-%d}{before}{age}"


def _windows(forecast: Forecast) -> Iterator[str]:
    told: list[str] = []
    for days, question in forecast.subject.windows(forecast.answers.now).items():
        window, age = forecast.said(question.name, advice.window)
        length = "1 day" if days == 1 else f"{days} days"
        if window and window.begin:
            told.append(f"{length} from {window.begin:%Y-%m-%d %H:%M} UTC in {window.zone}{age}")
        elif window:
            told.append(f"{length}: none within {advice.WINDOW_DAYS} days ({window.reason}){age}")
    if told:
        yield f"to reserve in calendar mode, {_nodes(forecast.subject.reserved_nodes)}: {'; '.join(told)}"


def _quotas(forecast: Forecast) -> Iterator[str]:
    quotas, age = forecast.quotas()
    for quota in quotas:
        most = quota.limit if quota.left is None else quota.left
        nodes = _nodes(int(most // forecast.subject.gpu.machine.gpus))
        if quota.left is None:
            told = f"quota of {quota.called}: {most:g} GPUs; how many are in use is not known, so at most {nodes}"
        else:
            told = f"quota left of {quota.called}: {most:g} of {quota.limit:g} GPUs, so {nodes}"
        yield f"{told} ({quota.what}){age}"


def _elsewhere(forecast: Forecast) -> Iterator[str]:
    for entry in forecast.subject.by_chance:
        wanted = forecast.subject.wanted(entry)
        here, _ = forecast.chance(entry, forecast.subject.settings.zone, wanted)
        if there := forecast.elsewhere(entry):
            zones = ", ".join(f"{zone} {_score(chance)}{age}" for zone, chance, age in there)
            best, chance, _ = there[0]
            better = here is None or chance.obtainability > here.obtainability
            verdict = f"likelier in {best}, in a stack of its own" if better else "likelier nowhere"
            yield f"{_nodes(wanted)} by {entry.pool_name} elsewhere: {zones}: {verdict}"


def _order(forecast: Forecast) -> Iterator[str]:
    now, proposed, unpriced = forecast.order()
    if len(now) < 2:
        return
    if unpriced:
        yield f"no order is proposed: no price is known for {', '.join(unpriced)} (`make prices` reads it)"
    elif now == proposed:
        yield "the ladder's order is the proposed one, by the price of an hour of progress"
    else:
        yield f"proposed order, by the price of an hour of progress: {', '.join(proposed)} (now: {', '.join(now)})"


def _problems(forecast: Forecast, asked: int, seconds: float) -> Iterator[str]:
    answers = forecast.answers
    if answers.refused:
        yield f"Google was asked nothing: {answers.refused}"
    counted = Counter((problem.problem, problem.remedy) for problem in answers.problems.values())
    for (problem, remedy), count in counted.items():
        yield f"{count} of {asked} questions not answered: {problem.rstrip('.')}. {remedy}"
    if answers.late:
        yield f"{answers.late} of {asked} questions not answered within {seconds:g} s: ask again"
    if not answers.refused and not counted and not answers.late:
        yield f"asked at {answers.now:%Y-%m-%d %H:%M} UTC: what Google expects now, not a promise"


def _likely(chance: Chance) -> str:
    """Google's three grades ("View the availability of Spot VMs") in words, with the score itself, and for how long."""
    score = round(chance.obtainability, 1)
    grade = "likely" if score >= 0.7 else "as likely as not" if score >= 0.4 else "unlikely"
    lasting = f", lasting {chance.uptime.total_seconds() / 60:g} min or more" if chance.uptime else ""
    return f"{grade} ({_score(chance)}){lasting}"


def _score(chance: Chance) -> str:
    return f"{chance.obtainability:.2g}"


def _nodes(count: int) -> str:
    return f"{count} node{'' if count == 1 else 's'}"
