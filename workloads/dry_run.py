"""`--dry-run`: every value that a command would use and where it came from, and what it would ask of Ray.

argparse does not say whether a value was typed or is a default, so the words are read a second time without defaults.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.table import Table

from workloads import environment, tables
from workloads.cluster import session
from workloads.errors import EXIT_OK

if TYPE_CHECKING:
    from workloads.cluster.session import Place

REDACTED = "[redacted]"

DEFAULT = "default"

_NOT_SETTINGS = frozenset({"command", "words", "dry_run", "json"})
"""What an argparse namespace holds beside the command's own settings."""

_SECRET_VARIABLE = re.compile(r"(_KEY|_TOKEN|PASSWORD|_SECRET)$")
_SECRET_LENGTH = 8
"""Shorter values of such variables are words like `token`, and would be struck out of every sentence."""

_USER_INFORMATION = re.compile(r"(?<=://)[^/@\s]+(?=@)")
"""`user:password` of an address (RFC 3986, 3.2.1)."""


@dataclass(frozen=True)
class Setting:
    """One effective value."""

    name: str
    """As the flag is spelled, without dashes in front: `batch-size`."""
    value: object
    """Plain data."""
    origin: str
    """`flag --x`, `recipe R`, `variable OASIS_X`, `default`, or a few words."""


def add_dry_run_arguments(
    parser: argparse.ArgumentParser, what: str = "every effective value and where it came from"
) -> None:
    """The arguments `--dry-run` and `--json`."""
    parser.add_argument("--dry-run", action="store_true", help=f"print {what}, and start nothing")
    parser.add_argument("--json", action="store_true", help="with --dry-run: one JSON object")


def given(add_arguments: Callable[[argparse.ArgumentParser], None], words: Sequence[str]) -> frozenset[str]:
    """Names of the arguments that were typed, as the namespace has them: `batch_size`.

    Args:
        add_arguments: the command's own, as the command line calls it.
        words: what was typed after the command's name; they were parsed before, so they are valid.
    """
    parser = argparse.ArgumentParser(add_help=False)
    add_arguments(parser)
    # No default but None, which nothing that is typed becomes.
    parser.set_defaults(**dict.fromkeys(vars(parser.parse_known_args(list(words))[0])))
    typed = vars(parser.parse_known_args(list(words))[0])
    return frozenset(name for name, value in typed.items() if value is not None)


def explain(
    args: argparse.Namespace,
    add_arguments: Callable[[argparse.ArgumentParser], None],
    resolved: Sequence[Setting],
) -> list[Setting]:
    """Every argument of a command and everything else that was resolved, each with its origin.

    Args:
        args: parsed; `args.words` has the words.
        add_arguments: the command's own.
        resolved: what the command made of the arguments. One with an argument's name gives the value that it stands
            for, and the origin where the argument was not typed.

    Returns:
        First the arguments, in the order of the command's help, then the other resolved values; secrets redacted.
    """
    typed = given(add_arguments, getattr(args, "words", ()))
    known = {setting.name: setting for setting in resolved}
    settings = []
    for name in (name for name in vars(args) if name not in _NOT_SETTINGS):
        flag = name.replace("_", "-")
        made = known.pop(flag, Setting(flag, vars(args)[name], DEFAULT))
        settings.append(dataclasses.replace(made, origin=f"flag --{flag}") if name in typed else made)
    return redacted([*settings, *known.values()])


def of_ray(place: Place) -> list[Setting]:
    """Address of Ray, and whether it forks workers."""
    forked = Setting("forked-workers", *session.forked_workers(place))
    if place.embedded:
        return [Setting("address", "embedded, on 127.0.0.1", DEFAULT), forked]
    origin = "where the job runs" if place.told_by else "variable RAY_ADDRESS"
    return [Setting("address", place.address, origin), forked]


def of_stack(place: Place) -> list[Setting]:
    """The stack's promises; nothing outside a stack."""
    if place.environment is None:
        return []
    return [
        Setting(name.replace("_", "-"), value, stack_origin(name, place))
        for name, value in dataclasses.asdict(place.environment).items()
    ]


def redacted(settings: Iterable[Setting], variables: Mapping[str, str] | None = None) -> list[Setting]:
    """The settings without the value of any secret variable and without passwords in addresses.

    Args:
        settings: any.
        variables: environment to take secrets from; the process's own if None.
    """
    variables = os.environ if variables is None else variables
    secrets = [
        value
        for name, value in variables.items()
        if _SECRET_VARIABLE.search(name) and len(value) >= _SECRET_LENGTH and not value.startswith("/")
    ]

    def clean(value: object) -> object:
        if not isinstance(value, str | Path):
            return value
        text = _USER_INFORMATION.sub(REDACTED, str(value))
        for secret in secrets:
            text = text.replace(secret, REDACTED)
        return text

    return [dataclasses.replace(setting, value=clean(setting.value)) for setting in settings]


def show(settings: Sequence[Setting], bundles: Sequence[Mapping[str, float]], strategy: str, as_json: bool) -> int:
    """Print the settings and the request; returns the exit code, 0.

    Args:
        settings: from `explain`.
        bundles: what would be asked of Ray, each on one node.
        strategy: Ray's name for where the bundles go.
        as_json: one JSON object instead of a table.
    """
    if as_json:
        print(json.dumps(document(settings, bundles, strategy), sort_keys=True))
    elif sys.stdout.isatty():
        _print_table(settings)
        print(_request(bundles, strategy))
    else:
        width = max(len(setting.name) for setting in settings)
        values = max(len(_text(setting.value)) for setting in settings)
        for setting in settings:
            print(f"{setting.name:<{width}}  {_text(setting.value):<{min(values, 48)}}  {setting.origin}")
        print(_request(bundles, strategy))
    return EXIT_OK


def document(
    settings: Sequence[Setting], bundles: Sequence[Mapping[str, float]], strategy: str
) -> dict[str, dict[str, Any]]:
    """The same as plain data: `settings` by name, and `request`."""
    return {
        "settings": {setting.name: {"value": setting.value, "origin": setting.origin} for setting in settings},
        "request": {"bundles": [dict(bundle) for bundle in bundles], "strategy": strategy},
    }


def _print_table(settings: Sequence[Setting]) -> None:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in ("setting", "value", "where it came from"):
        table.add_column(heading, overflow="fold")
    for setting in settings:
        style = {"flag": "bold cyan", DEFAULT: "dim"}.get(setting.origin.partition(" ")[0], "")
        table.add_row(setting.name, _text(setting.value), setting.origin, style=style)
    tables.show(table)


def _request(bundles: Sequence[Mapping[str, float]], strategy: str) -> str:
    kinds: dict[str, int] = {}
    for bundle in bundles:
        text = ", ".join(f"{amount:g} {resource}" for resource, amount in bundle.items())
        kinds[text] = kinds.get(text, 0) + 1
    asked = " and ".join(f"{count} x [{text}]" for text, count in kinds.items())
    return f"\nasked of Ray: {asked or 'nothing'}, placed {strategy}\nnothing was started"


def _text(value: object) -> str:
    return "" if value is None else str(value)


def stack_origin(field: str, place: Place) -> str:
    """Source of a value that the stack decides, if there is one."""
    if place.environment is None:
        return DEFAULT
    return place.told_by or f"variable {environment.variable(field)}"
