"""One stack from the command line. `plan` needs nothing; the others call pulumi, gcloud and kubectl."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from oasis_stack.command_line import cluster_access, image, init, plan, secret, stack_file
from oasis_stack.command_line.external_program import ProgramError
from oasis_stack.command_line.pulumi_stack import Stack
from oasis_stack.command_line.stack_file import StackFileError
from oasis_stack.problem import SettingsError
from oasis_stack.settings import from_config, parse

OK, FAILED, USAGE, INTERRUPTED = 0, 1, 2, 130

EPILOG = """\
In order, for a new stack:
  cp Pulumi.dev.yaml Pulumi.mine.yaml, and edit it     every section is in it, and explained
  python -m oasis_stack init --stack mine              state bucket, key, project
  python -m oasis_stack plan --stack mine              check what it means, at no cost
  pulumi up -s mine                                    15 to 25 minutes
  python -m oasis_stack image --stack mine             then `pulumi up -s mine` again
  python -m oasis_stack dashboard --stack mine
  python -m oasis_stack destroy --stack mine

Exit status: 0 done, 1 a step failed, 2 wrong usage or settings, 130 interrupted.
"""


def parser() -> argparse.ArgumentParser:
    """The command line."""
    root = argparse.ArgumentParser(
        prog="python -m oasis_stack", description=__doc__, epilog=EPILOG, formatter_class=argparse.RawTextHelpFormatter
    )
    commands = root.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def command(name: str, does: str) -> argparse.ArgumentParser:
        made = commands.add_parser(name, help=does, description=does)
        made.add_argument("--stack", default="dev", help="Pulumi.<stack>.yaml is read (default: dev)")
        return made

    command("plan", "show every setting and where it comes from, the addresses and the ladder; touches nothing")
    initialise = command("init", "make state bucket and key, and write what is missing into an existing stack file")
    initialise.add_argument("--project", help="Google Cloud project, if the stack file names none (default: gcloud's)")
    for name, does in (
        ("preview", "check the settings, then `pulumi preview`"),
        ("up", "check the settings, then `pulumi up`"),
        ("destroy", "list what runs and what will stay, then `pulumi destroy`"),
    ):
        command(name, does).add_argument("--yes", action="store_true", help="do not ask")
    command("destroy-plan", "only list what `destroy` would end, and what would stay")
    build = command("image", "build workloads/image, push it, and write its digest into the stack file")
    build.add_argument("--builder", choices=image.BUILDERS, default="cloud-build", help="default: cloud-build")
    command("secret", "store the Weights & Biases key, read from the terminal or standard input")
    command("dashboard", "make ray_dashboard_url answer until Ctrl-C")
    return root


def main(arguments: Sequence[str] | None = None, directory: Path = stack_file.ROOT) -> int:
    """Run one command; its exit status."""
    options = parser().parse_args(arguments)
    try:
        return _run(options, Stack.named(options.stack, directory))
    except (SettingsError, StackFileError) as error:
        print(f"{options.stack}: {error}", file=sys.stderr)
        return USAGE
    except ProgramError as error:
        print(error, file=sys.stderr)
        return FAILED
    except KeyboardInterrupt:
        return INTERRUPTED


def _run(options: argparse.Namespace, stack: Stack) -> int:
    match options.command:
        case "init":
            init.init(stack, options.project, _say)
        case "image":
            image.image(stack, options.builder, _say)
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
    settings = parse(values)
    if options.command == "plan":
        _say(plan.report(settings, values))
        return OK
    if options.command in ("destroy", "destroy-plan"):
        _say("\n  ".join(["Ends with the stack:", *cluster_access.reachable(stack)]))
        _say("\n  ".join(["Stays:", *cluster_access.kept(settings)]))
        if options.command == "destroy-plan":
            return OK
    return stack.run(options.command, extra=["--yes"] if options.yes else [])


def _say(text: str) -> None:
    print(text, flush=True)


if __name__ == "__main__":
    sys.exit(main())
