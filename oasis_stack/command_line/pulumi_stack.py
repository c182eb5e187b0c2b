"""Calls the Pulumi command line for one stack, with the state backend that the stack file names."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from oasis_stack.command_line import external_program, stack_file
from oasis_stack.command_line.external_program import ProgramError

_PASSPHRASE = ("PULUMI_CONFIG_PASSPHRASE", "PULUMI_CONFIG_PASSPHRASE_FILE")


@dataclass(frozen=True, kw_only=True)
class Stack:
    """One stack of this checkout."""

    name: str
    """As in `Pulumi.<name>.yaml`."""
    file: Path
    """Path of the stack file, already checked to exist."""

    @classmethod
    def named(cls, name: str, directory: Path = stack_file.ROOT) -> Stack:
        """The stack with this name.

        Raises:
            StackFileError: it has no file.
        """
        return cls(name=name, file=stack_file.find(name, directory))

    def environment(self) -> dict[str, str]:
        """Variables that the Pulumi command line needs in addition to the caller's environment, which takes precedence.

        Raises:
            ProgramError: the stack is encrypted with a passphrase that the caller's environment does not name.
        """
        if stack_file.encrypted_with_passphrase(self.file) and not any(name in os.environ for name in _PASSPHRASE):
            raise ProgramError(
                f"the secrets of stack {self.name} are encrypted with a passphrase, and none is given. "
                f"Set {_PASSPHRASE[1]} to a file that holds it, or {_PASSPHRASE[0]} to the passphrase itself."
            )
        backend = stack_file.config(self.file).get("oasis:state_backend")
        return {} if "PULUMI_BACKEND_URL" in os.environ or not backend else {"PULUMI_BACKEND_URL": str(backend)}

    def command(self, *arguments: str) -> list[str]:
        """A Pulumi command line for this stack."""
        return [*self.bare_command(*arguments), "--stack", self.name]

    def bare_command(self, *arguments: str) -> list[str]:
        """A Pulumi command line in this project that names no stack by option."""
        return ["pulumi", "--cwd", str(self.file.parent), *arguments]

    def run(self, *arguments: str, extra: Sequence[str] = (), **variables: str) -> int:
        """Run Pulumi on this terminal, with further `variables`; its exit status."""
        return external_program.show([*self.command(*arguments), *extra], {**self.environment(), **variables})

    def state(self) -> dict[str, Any]:
        """Pulumi's state of the stack, with secrets encrypted.

        Raises:
            ProgramError: Pulumi is missing, or there is no such stack yet.
        """
        return json.loads(external_program.read(self.command("stack", "export"), self.environment()))

    def put_state(self, state: Mapping[str, Any]) -> None:
        """Replace what Pulumi knows of the stack. Raises ProgramError if Pulumi refuses it."""
        external_program.read(self.command("stack", "import"), self.environment(), stdin=json.dumps(state))

    def outputs(self, show_secrets: bool = False) -> Mapping[str, object]:
        """The stack's outputs.

        Raises:
            ProgramError: Pulumi is missing or cannot read them.
        """
        arguments = ["stack", "output", "--json", *(["--show-secrets"] if show_secrets else [])]
        return json.loads(external_program.read(self.command(*arguments), self.environment()))

    def output(self, name: str, show_secrets: bool = False) -> str:
        """One output as text.

        Raises:
            ProgramError: as `outputs`, or the stack has no such output yet.
        """
        value = self.outputs(show_secrets).get(name)
        if value is None:
            raise ProgramError(f"stack {self.name} has no output {name!r}. Run `pulumi up -s {self.name}` first.")
        return str(value)
