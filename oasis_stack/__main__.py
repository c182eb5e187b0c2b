"""One stack from the command line. `plan` needs nothing; `forecast`, `preflight` and `prices` ask Google with
application default credentials; the others call pulumi, gcloud and kubectl."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from oasis_stack.command_line import (
    closed_pipe,
    cluster_access,
    external_program,
    image,
    init,
    plan,
    price_catalogue,
    recovery,
    restart,
    secret,
    stack_file,
    stale_lock,
)
from oasis_stack.command_line.external_program import ProgramError
from oasis_stack.command_line.pulumi_stack import Stack
from oasis_stack.command_line.stack_file import StackFileError
from oasis_stack.facts.prices import PriceTableError
from oasis_stack.facts.problem import SettingsError
from oasis_stack.forecast import ladder
from oasis_stack.forecast import report as forecast_report
from oasis_stack.preflight.finding import Check, Finding, told
from oasis_stack.preflight.google import Google
from oasis_stack.settings.schema import Settings
from oasis_stack.settings.settings import from_config, parse

EMULATED_VARIABLE, EMULATED_STACK = "STORAGE_EMULATOR_HOST", "local"
"""Google's own variable for another Cloud Storage, which tells a shell of `python -m emulator env`; and its stack."""

LIMIT = "oasis:cost"
"""Section of the stack file with what the stack may cost."""

CALLERS = {"gcp:accessToken", "gcp:credentials", "gcp:impersonateServiceAccount"}
"""Keys of a stack file by which Google's provider is somebody else."""

OK, FAILED, USAGE, INTERRUPTED = 0, 1, 2, 130

EPILOG = """\
In order, for a new stack:
  cp Pulumi.dev.yaml Pulumi.mine.yaml, and edit it     every section is in it, and explained
  python -m oasis_stack init --stack mine              state bucket, key, project
  python -m oasis_stack plan --stack mine              check what it means, at no cost
  python -m oasis_stack forecast --stack mine          are its nodes likely to come?
  python -m oasis_stack preflight --stack mine         ask Google what the project lacks for it; changes nothing
  pulumi up -s mine
  python -m oasis_stack image --stack mine             then `pulumi up -s mine` again
  python -m oasis_stack restart --stack mine           Ray pods with the new image; asks first
  python -m oasis_stack dashboard --stack mine
  python -m oasis_stack destroy --stack mine

Exit status: 0 done, 1 a step failed, 2 wrong usage or settings, 130 interrupted; once `up`, `preview`, `destroy`,
`restart` and `dashboard` run pulumi or kubectl, they exit with its status.
"""

_PLAN = """\
Needs no account, no program and no network: run it after every edit of the stack file. With Google credentials it also
asks, for at most 5 s, whether nodes are likely to come; without them it says so and shows the last answers."""
_FORECAST = """\
Asks Compute Engine's advice API with your application default credentials (`gcloud auth application-default login`):
how likely the nodes of each rung are to come, how long Spot nodes last and what they cost, when nodes can be reserved,
which quota is left, and where else nodes are likelier; then proposes an order of the rungs. It changes nothing, blocks
nothing, and exits with 0 whatever Google says. Google documents the API for Spot. Answers are kept in .oasis/forecast
for when Google does not answer, and shown with their age."""
_INIT = """\
Needs gcloud, signed in (`gcloud auth login`), and pulumi, which takes `gcloud auth application-default login`. It
creates what is missing: the bucket for Pulumi's state, the Cloud KMS key for the stack's secrets, the stack itself.
Run it again after an interruption."""
_PRICES = """\
Changes one file of this checkout, oasis_stack/facts/prices.csv, from which `plan`, the outputs and
oasis:cost.max_hourly_usd take their prices; those that the catalogue lacks stay as they are. Needs Google credentials
(`gcloud auth application-default login`) and the API cloudbilling.googleapis.com, enabled in the stack's project."""
_PREFLIGHT = """\
Changes nothing. Asks Google, with your application default credentials (`gcloud auth application-default login`), about
project, billing, APIs, your permissions, machine types, quotas, reservations, keys, organisation policies. Exit status
1 if `up` would fail or wait for nodes in vain; what Google does not tell you is listed, and is no failure. It takes
some seconds; without credentials it checks only this machine."""
_PULUMI = """\
Needs pulumi, gke-gcloud-auth-plugin, and Google credentials (`gcloud auth application-default login`)."""
_IMAGE = """\
After the first `up`. The stack file then names the image by digest; `pulumi up` and `restart` bring it into use.
Needs pulumi and gcloud, and the builder itself if it is not cloud-build."""
_RESTART = """\
After `up` with a new image: running pods keep their old one. Asks before it ends anything.
Needs pulumi, kubectl, gke-gcloud-auth-plugin."""
_SECRET = """\
After `up` with the section oasis:wandb. The key is in no file, argument or log. Needs pulumi and gcloud."""


def parser() -> argparse.ArgumentParser:
    """The command line."""
    root = argparse.ArgumentParser(
        prog="python -m oasis_stack", description=__doc__, epilog=EPILOG, formatter_class=argparse.RawTextHelpFormatter
    )
    commands = root.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def command(name: str, does: str, more: str) -> argparse.ArgumentParser:
        made = commands.add_parser(
            name, help=does, description=f"{does[0].upper()}{does[1:]}.\n{more}", formatter_class=root.formatter_class
        )
        made.add_argument("--stack", default="dev", help="the stack, read from Pulumi.<stack>.yaml (default: dev)")
        made.set_defaults(refuse=made.error)
        return made

    command(
        "plan",
        "show the settings, addresses, ladder, resources and the order of their deletion; touches nothing",
        _PLAN,
    ).add_argument(
        "--settings-only", action="store_true", help="stop after the prices: neither ask Google nor run the program"
    )
    initialise = command(
        "init", "create the state bucket and key, and write what is missing into an existing stack file", _INIT
    )
    initialise.add_argument(
        "--project",
        help="Google Cloud project id, written into the stack file as gcp:project. Needed if neither the file nor\n"
        "`gcloud config get-value project` names one; refused if the file names another",
    )
    forecast = command("forecast", "say whether the ladder's nodes are likely to come, and at which price", _FORECAST)
    forecast.add_argument("--brief", action="store_true", help="a line for each rung, and the proposed order")
    forecast.add_argument("--job", choices=("ladder", "queue"), help="only the rungs that such a job may use")
    forecast.add_argument("--nodes", type=int, metavar="N", help="job's nodes (default: all that each rung may have)")
    command("preflight", "say what the project lacks for this stack, before anything is made", _PREFLIGHT)
    command("prices", "read the list prices of what the stack runs from Google's catalogue", _PRICES)
    for name, does, more in (
        ("preview", "check the settings, then `pulumi preview`", _PULUMI),
        ("up", "check the settings, then `pulumi up`", _PULUMI),
        ("destroy", "list what runs and what will stay, then `pulumi destroy`", _PULUMI),
        ("restart", "end the Ray pods, so that KubeRay recreates them; lists the jobs that end with them", _RESTART),
    ):
        command(name, does, more).add_argument("--yes", action="store_true", help="do not ask")
    command("destroy-plan", "only list what `destroy` would end, and what would stay", "Nothing is changed.")
    build = command("image", "build workloads/image, push it, and write its digest into the stack file", _IMAGE)
    build.add_argument("--builder", choices=image.BUILDERS, default="cloud-build", help="default: cloud-build")
    command("secret", "store the Weights & Biases key, read from the terminal or standard input", _SECRET)
    command("dashboard", "make ray_dashboard_url answer until Ctrl-C", "Needs pulumi, kubectl, gke-gcloud-auth-plugin.")
    return root


def main(arguments: Sequence[str] | None = None, directory: Path = stack_file.ROOT) -> int:
    """Run one command; its exit status."""
    options, unknown = parser().parse_known_args(arguments)
    if unknown:
        options.refuse(f"unrecognized arguments: {' '.join(unknown)}")
    try:
        if options.command != "plan":
            _refuse_other_cloud(options.stack)
        return _run(options, Stack.named(options.stack, directory))
    except (SettingsError, StackFileError, PriceTableError) as error:
        print(f"{options.stack}: {error}", file=sys.stderr)
        return USAGE
    except ProgramError as error:
        print(error, file=sys.stderr)
        return FAILED
    except KeyboardInterrupt:
        return INTERRUPTED


def _refuse_other_cloud(stack: str) -> None:
    """Refuse what would ask an emulated cloud about a stack on Google Cloud, and Google about an emulated one.

    Raises:
        ProgramError: this shell's Google is emulated, and the stack is another than the emulator's.
    """
    if EMULATED_VARIABLE in os.environ and stack != EMULATED_STACK:
        raise ProgramError(
            f"this shell is of the emulated cloud, whose stack is {EMULATED_STACK}: nothing was done about {stack}. "
            "For a stack on Google Cloud use a shell without the emulator's `env`."
        )


def _run(options: argparse.Namespace, stack: Stack) -> int:
    match options.command:
        case "init":
            init.init(stack, options.project, _say)
        case "restart":
            return restart.restart(stack, options.yes, _say)
        case "secret":
            secret.secret(stack, _say)
        case "dashboard":
            return cluster_access.dashboard(stack, _say)
        case _:
            return _with_settings(options, stack)
    return OK


def _with_settings(options: argparse.Namespace, stack: Stack) -> int:
    # These read the whole stack file first, so that a wrong setting ends the command before anything is called.
    values = from_config(stack_file.config(stack.file))
    now = datetime.now(UTC)
    settings = parse(values, now.date() if options.command in ("preview", "up") else None)
    if options.command == "plan":
        _say("\n".join([plan.report(settings, values, now.date()), *plan.notes(settings, now)]))
        if not options.settings_only:
            _planned_forecast(settings, stack)
            # The program's SDKs, which take seconds to import and serve no other command.
            from oasis_stack.command_line import offline, resource_tree

            # Without its limit, by which the program would be refused: what costs too much is to be seen.
            config = {key: value for key, value in stack_file.config(stack.file).items() if key != LIMIT}
            _say("\n".join(["", *resource_tree.lines(offline.deploy_stack(config))]))
        parse(values, now.date())
        return OK
    if options.command == "forecast":
        return _forecast(options, settings, stack)
    if options.command == "preflight":
        return _preflight(settings, stack)
    if options.command == "prices":
        price_catalogue.refresh(settings, now.date(), _say)
        return OK
    if options.command == "image":
        image.image(stack, settings.ray.version, options.builder, _say)
        return OK
    if options.command != "destroy-plan":
        # Pulumi's Kubernetes provider signs in by the plugin; without it a run would stop half way.
        external_program.require("pulumi", "gke-gcloud-auth-plugin")
        stack.environment()
    for note in plan.notes(settings, now) if options.command in ("preview", "up") else ():
        _say(note)
    if options.command in ("up", "destroy"):
        if not options.yes and not sys.stdin.isatty():
            # Pulumi refuses, with the names of its own options.
            again = f"python -m oasis_stack {options.command} --stack {stack.name} --yes"
            _say(f"There is no terminal to ask on. To agree beforehand: {again}")
        stale_lock.release(stack, _say)
        recovery.settle(stack, _say)
    # By the state as it is once what a killed run left is in it.
    if options.command in ("destroy", "destroy-plan"):
        _say_what_a_destroy_does(settings, stack, now, only_told=options.command == "destroy-plan")
        if options.command == "destroy-plan":
            return OK
    if options.command == "up":
        return recovery.up(stack, _say, yes=options.yes)
    # A preview asks nothing, and its Pulumi command knows no such option.
    return stack.run(options.command, extra=["--yes"] if options.yes and options.command == "destroy" else [])


def _say_what_a_destroy_does(settings: Settings, stack: Stack, now: datetime, *, only_told: bool) -> None:
    """List what ends and what stays.

    Raises:
        ProgramError: what stays is not what the stack file says, or, unless it is `only_told`, Pulumi does not say.
    """
    from oasis_stack.preflight import kept

    try:
        state = stack.state()
    except ProgramError:
        if not only_told:
            raise
        state = {}
    if unapplied := [*kept.unapplied(settings, state)]:
        raise ProgramError(
            "\n".join(
                [*unapplied, "A destroy follows the last `pulumi up`, not the stack file, so nothing was destroyed."]
            )
            + f"\nApply the stack file first (make up STACK={stack.name}), or undo its change."
        )
    ends = [*cluster_access.running(stack), *restart.jobs_of_the_standing_ray(stack)]
    _say("\n  ".join(["Ends with the stack:", *ends]))
    _say("\n  ".join(["Stays:", *kept.lines(settings, now)]))


def _planned_forecast(settings: Settings, stack: Stack) -> None:
    subject = ladder.of(settings)
    if subject is None:
        return
    seconds = forecast_report.PLAN_SECONDS
    _say(f"\nForecast of {subject.called}; Google is given {seconds:g} s to answer")
    try:
        _refuse_other_cloud(stack.name)
    except ProgramError as error:
        _say(f"  not asked: {error}")
        return
    _say_indented(forecast_report.lines(subject, Google(settings.project), _kept_answers(stack), seconds))


def _forecast(options: argparse.Namespace, settings: Settings, stack: Stack) -> int:
    if options.nodes is not None and options.nodes < 1:
        options.refuse(f"argument --nodes: {options.nodes} is less than 1")
    subject = ladder.of(settings, queued=options.job and options.job == "queue", nodes=options.nodes)
    if subject is None:
        rungs = "rung for such a job" if settings.gpu and options.job else "gpu section"
        _say(f"{stack.name} has no {rungs}, so there is nothing to forecast")
        return OK
    seconds = forecast_report.SECONDS
    patience = "" if options.brief else f"; Google is given {seconds:g} s to answer"
    _say(f"Forecast of {subject.called}{patience}")
    google = Google(settings.project)
    _say_indented(forecast_report.lines(subject, google, _kept_answers(stack), seconds, brief=options.brief))
    return OK


def _kept_answers(stack: Stack) -> Path:
    return stack.file.parent / ".oasis" / "forecast" / f"{stack.name}.json"


def _say_indented(lines: Sequence[str]) -> None:
    _say("\n".join(f"  {line}" for line in lines))


def _preflight(settings: Settings, stack: Stack) -> int:
    # As for `plan`: the program says which APIs it uses.
    from oasis_stack.command_line import offline
    from oasis_stack.preflight import report

    config = stack_file.config(stack.file)
    subject = ladder.of(settings)

    def look(_: Settings, google: Google) -> list[Finding]:
        asked = subject and forecast_report.lines(subject, google, _kept_answers(stack), forecast_report.SECONDS)
        return [told(line) for line in asked or ()]

    for key in CALLERS & config.keys():
        _say(f"Note: with {key}, `pulumi up` does not use the application default credentials that are checked here.")
    program = offline.deploy_stack({key: value for key, value in config.items() if key != LIMIT})
    return OK if report.run(settings, program, _say, [Check(title="Forecast", look=look)]) else FAILED


def _say(text: str) -> None:
    print(text, flush=True)


if __name__ == "__main__":
    sys.exit(closed_pipe.run(main))
