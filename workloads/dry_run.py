"""`--dry-run`: every value that a command would use, the source of each, and what it would request from Ray.

argparse does not say whether a value was typed or is a default, so the words are read a second time without defaults.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import re
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.table import Column

from workloads import environment, tables
from workloads.cluster import session
from workloads.errors import EXIT_OK

if TYPE_CHECKING:
    from workloads.cluster.session import Place

Settings = dict[str, tuple[object, str]]
"""Effective values by name, as the flag is spelled without dashes in front (`batch-size`): plain data, and its origin,
which is `flag --x`, `recipe R`, `variable OASIS_X`, `default`, or a few words."""

REDACTED = "[redacted]"

DEFAULT = "default"

_NOT_SETTINGS = frozenset({"command", "words", "dry_run", "json"})
"""What an argparse namespace holds beside the command's own settings."""

_SECRET_VARIABLE = re.compile(r"(_KEY|_TOKEN|PASSWORD|_SECRET)$")
_SECRET_LENGTH = 8
"""Shorter values of such variables are words like `token`, and would be struck out of every sentence."""

_USER_INFORMATION = r"(?<=://)[^/@\s]+(?=@)"
"""`user:password` of an address (RFC 3986, 3.2.1)."""


def add_dry_run_arguments(
    parser: argparse.ArgumentParser, what: str = "every effective value and where it came from"
) -> None:
    """The arguments `--dry-run` and `--json`."""
    parser.add_argument("--dry-run", action="store_true", help=f"print {what}, and start nothing")
    parser.add_argument("--json", action="store_true", help="with --dry-run: one JSON object")


def explain(
    args: argparse.Namespace, add_arguments: Callable[[argparse.ArgumentParser], None], resolved: Settings
) -> Settings:
    """Every argument of a command and everything else that was resolved, each with its origin.

    Args:
        args: parsed; `args.words` has the words, if any were typed.
        add_arguments: the command's own, as the command line calls it.
        resolved: what the command made of the arguments. One with an argument's name gives the value that it stands
            for, and the origin where the argument was not typed.

    Returns:
        First the arguments, in the order of the command's help, then the other resolved values.
    """
    parser = argparse.ArgumentParser(add_help=False)
    add_arguments(parser)
    words = list(getattr(args, "words", ()))
    # No default but None, which nothing that is typed becomes.
    parser.set_defaults(**dict.fromkeys(vars(parser.parse_known_args(words)[0])))
    typed = vars(parser.parse_known_args(words)[0])
    found: Settings = {name.replace("_", "-"): (value, DEFAULT) for name, value in vars(args).items()} | resolved
    found |= {
        flag: (found[flag][0], f"flag --{flag}") for flag in found if typed.get(flag.replace("-", "_")) is not None
    }
    return {flag: setting for flag, setting in found.items() if flag.replace("-", "_") not in _NOT_SETTINGS}


def of_ray(place: Place) -> Settings:
    """Address of Ray, and whether it forks workers."""
    at = (place.address, "where the job runs" if place.told_by else "variable RAY_ADDRESS")
    return {
        "address": ("embedded, on 127.0.0.1", DEFAULT) if place.embedded else at,
        "forked-workers": session.forked_workers(place),
    }


def of_stack(place: Place) -> Settings:
    """The stack's promises; nothing outside a stack."""
    promised = dataclasses.asdict(place.environment) if place.environment else {}
    return {name.replace("_", "-"): (value, stack_origin(name, place)) for name, value in promised.items()}


def stack_origin(field: str, place: Place) -> str:
    """Source of a value that the stack decides, if there is one."""
    if place.environment is None:
        return DEFAULT
    return place.told_by or f"variable {environment.variable(field)}"


def show(
    settings: Settings, bundles: Sequence[Mapping[str, float]], strategy: str, as_json: bool, **more: object
) -> int:
    """Print the settings, without secrets and passwords, and the request; returns the exit code, 0.

    Args:
        settings: from `explain`.
        bundles: what would be asked of Ray, each on one node.
        strategy: Ray's name for where the bundles go.
        as_json: one JSON object instead of a table.
        more: members of the object beside `settings`, by name, and `request`.
    """
    secrets = [
        re.escape(value)
        for name, value in os.environ.items()
        if _SECRET_VARIABLE.search(name) and len(value) >= _SECRET_LENGTH and not value.startswith("/")
    ]
    pattern = re.compile("|".join([_USER_INFORMATION, *secrets]))
    shown = {
        name: (pattern.sub(REDACTED, str(value)) if isinstance(value, str | Path) else value, origin)
        for name, (value, origin) in settings.items()
    }
    if as_json:
        values = {name: {"value": value, "origin": origin} for name, (value, origin) in shown.items()}
        request = {"bundles": [dict(bundle) for bundle in bundles], "strategy": strategy}
        print(json.dumps({"settings": values, "request": request, **more}, sort_keys=True))
        return EXIT_OK
    headings = (Column(name, overflow="fold") for name in ("setting", "value", "where it came from"))
    table = tables.plain(*headings, show_header=sys.stdout.isatty())
    for name, (value, origin) in shown.items():
        style = {"flag": "bold cyan", DEFAULT: "dim"}.get(origin.partition(" ")[0], "")
        table.add_row(name, "" if value is None else str(value), origin, style=style)
    tables.show(table)
    kinds = Counter(", ".join(f"{amount:g} {resource}" for resource, amount in bundle.items()) for bundle in bundles)
    asked = " and ".join(f"{count} x [{text}]" for text, count in kinds.items())
    print(f"\nasked of Ray: {asked or 'nothing'}, placed {strategy}\nnothing was started")
    return EXIT_OK
