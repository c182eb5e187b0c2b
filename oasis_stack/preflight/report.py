"""`preflight`: all questions, asked in parallel, and their findings as text."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial

from oasis_stack.command_line.offline import Registered
from oasis_stack.preflight import access, organisation, places, quotas
from oasis_stack.preflight.finding import Check, Finding, unanswered
from oasis_stack.preflight.google import Google, UnseenError, asked
from oasis_stack.settings.schema import Settings

PATIENCE_SECONDS = 120.0
"""Longest wait for all answers: one takes up to 30 s, and some lists have several pages."""

_MARKS = {"good": "ok ", "bad": "NO ", "unknown": "?  ", "told": "-  "}


def checks(program: Iterable[Registered]) -> list[Check]:
    """Every check that asks Google, in the order in which they are shown. `program`: all that the stack registers."""
    made = defaultdict[str, list[str]](list)
    for one in program:
        made[one.type].append(one.name)
    used = frozenset(one.inputs["service"] for one in program if one.type == "gcp:projects/service:Service")
    return [
        Check(title="Project", look=access.project),
        Check(title="Billing", look=access.billing),
        Check(title="APIs", look=partial(access.services, apis=used)),
        Check(title="Permissions", look=access.permissions),
        Check(title="Grants", look=access.grants),
        Check(title="Machine types", look=places.machine_types),
        Check(title="RDMA network", look=places.rdma_network),
        Check(title="Quotas", look=partial(quotas.check, made=made)),
        Check(title="Reservations", look=places.reservations),
        Check(title="Keys", look=places.keys),
        Check(title="Secrets", look=places.secrets),
        Check(title="Organisation policies", look=partial(organisation.check, apis=used)),
    ]


def run(
    settings: Settings, program: Iterable[Registered], say: Callable[[str], None], further: Sequence[Check] = ()
) -> bool:
    """Ask, and say what was found; True if nothing is bad.

    Args:
        settings: of the stack.
        program: all that it registers.
        say: told of each finding.
        further: subjects that are looked at, too, and shown last.
    """
    google = Google(settings.project)
    here = (Check(title="Programs", look=access.programs), Check(title="Price", look=access.price))
    found = {check.title: check.findings(settings, google) for check in here}
    say(f"asking Google about {settings.project}; nothing is changed")
    questions = {check.title: partial(check.findings, settings, google) for check in (*checks(program), *further)}
    came, without = asked(questions, PATIENCE_SECONDS)
    late = UnseenError(f"Google has not answered within {PATIENCE_SECONDS:.0f} s", "Ask again.")
    for title in questions if not without else ():
        answer = came.get(title, late)
        found[title] = [unanswered(answer)] if isinstance(answer, UnseenError) else answer
    for line in _lines(found):
        say(line)
    if without:
        say(f"\nGoogle was asked nothing: {without}")
        return False
    bad = sum(finding.verdict == "bad" for findings in found.values() for finding in findings)
    unseen = sum(finding.verdict == "unknown" for findings in found.values() for finding in findings)
    say(f"\n{bad or 'nothing'} to mend before `up`" + (f"; {unseen} not known" if unseen else ""))
    return not bad


def _lines(found: dict[str, list[Finding]]) -> Iterator[str]:
    for title, findings in found.items():
        if findings:
            yield f"\n{title}"
        for finding in findings:
            yield f"  {_MARKS[finding.verdict]} {finding.what}"
            if finding.remedy:
                yield f"      {finding.remedy}"
