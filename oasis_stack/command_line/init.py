"""`init`: state bucket, encryption key and project for a stack whose file exists; existing ones are left alone.

Every step may be repeated: run an interrupted `init` again to finish it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from oasis_stack.command_line import external_program, stack_file
from oasis_stack.command_line.external_program import ProgramError, read, succeeds
from oasis_stack.command_line.pulumi_stack import Stack
from oasis_stack.facts import names

KEY_RING = "oasis"
ROTATION = "90d"
"""How often Cloud KMS makes a new version of the key; values encrypted with older ones stay readable."""

_KEY_ID = re.compile(r"[A-Za-z0-9_-]{1,63}")
"""Cloud KMS key ids (Cloud KMS API reference, "Method: cryptoKeys.create"); the key has the stack's name."""

EMULATED = "local"
"""The stack that `make demo` deploys; its project does not exist at Google."""

# Services that init itself calls. The program enables what it needs itself.
_SERVICES = ("cloudkms.googleapis.com", "storage.googleapis.com", "cloudresourcemanager.googleapis.com")


def init(stack: Stack, project: str | None, say: Callable[[str], None]) -> None:
    """Prepare a stack.

    Raises:
        ProgramError: a program is missing or refused.
        StackFileError: the stack file cannot be edited.
    """
    _check_name(stack)
    external_program.require("gcloud", "pulumi")
    config = stack_file.config(stack.file)
    project = _project(stack, config.get("gcp:project"), project)
    region = str(config.get("oasis:region") or "")
    if not region:
        raise ProgramError(f"{stack.file.name} has no oasis:region. Set it, then run this again.")
    bucket = names.bucket(project, str(config.get("oasis:name") or "oasis"), "state")
    backend = str(config.get("oasis:state_backend") or f"gs://{bucket}")
    key = f"projects/{project}/locations/{region}/keyRings/{KEY_RING}/cryptoKeys/{stack.name}"

    read(["gcloud", "services", "enable", *_SERVICES, "--project", project])
    say(f"enabled {', '.join(_SERVICES)} in {project}")
    for done in (*_bucket(backend, project, region), *_key(key, project, region, stack.name)):
        say(done)
    for keys, value in (
        (("config", "gcp:project"), project),
        (("config", "oasis:state_backend"), backend),
    ):
        written = stack_file.fill(stack.file, keys, value)
        say(f"{stack.file.name}: {'wrote' if written else 'kept'} {keys[-1]}: {value if written else 'as it is'}")
    _select(stack, backend, key, say)


def _check_name(stack: Stack) -> None:
    if stack.name == EMULATED:
        raise ProgramError(
            f"stack {stack.name} is the emulated cloud's, and needs no init: `make demo` deploys it. For a project of "
            "Google Cloud, copy Pulumi.dev.yaml to Pulumi.mine.yaml, edit it, and name that: --stack mine."
        )
    if not _KEY_ID.fullmatch(stack.name):
        raise ProgramError(
            f"the encryption key of stack {stack.name} has the stack's name, but Cloud KMS allows 1 to 63 letters, "
            f"digits, _ and -. Rename {stack.file.name} and the stack."
        )


def _project(stack: Stack, written: object, asked: str | None) -> str:
    if written and asked and written != asked:
        raise ProgramError(
            f"{stack.file.name} names project {written}, and --project says {asked}. Change one of the two; "
            "a stack that exists cannot move to another project."
        )
    project = str(written or asked or read(["gcloud", "config", "get-value", "project"]).strip())
    if not names.PROJECT_PATTERN.fullmatch(project):
        raise ProgramError(
            (f"{project!r} is not a project id" if project else "no project is chosen")
            + ". Name it: --project my-project, or `gcloud config set project my-project`."
        )
    return project


def _bucket(backend: str, project: str, region: str) -> Iterator[str]:
    if not backend.startswith("gs://"):
        yield f"state backend {backend}: not a bucket, so nothing to make"
        return
    url = f"gs://{backend.removeprefix('gs://').split('/')[0]}"
    if succeeds(["gcloud", "storage", "buckets", "describe", url, "--project", project]):
        yield f"state bucket {url}: already there"
    else:
        private = ["--uniform-bucket-level-access", "--public-access-prevention"]
        read(["gcloud", "storage", "buckets", "create", url, "--project", project, "--location", region, *private])
        yield f"state bucket {url}: made, private"
    # Versions are what brings back a state that a crash or a mistake has damaged.
    read(["gcloud", "storage", "buckets", "update", url, "--versioning", "--project", project])
    yield f"state bucket {url}: keeps versions"


def _key(key: str, project: str, region: str, name: str) -> Iterator[str]:
    place = ["--location", region, "--project", project]
    if not succeeds(["gcloud", "kms", "keyrings", "describe", KEY_RING, *place]):
        read(["gcloud", "kms", "keyrings", "create", KEY_RING, *place])
        yield f"key ring {KEY_RING}: made"
    place += ["--keyring", KEY_RING]
    if succeeds(["gcloud", "kms", "keys", "describe", name, *place]):
        yield f"key {key}: already there"
        return
    rotation = ["--rotation-period", ROTATION, "--next-rotation-time", "P90D"]
    read(["gcloud", "kms", "keys", "create", name, "--purpose", "encryption", *rotation, *place])
    yield f"key {key}: made, a new version every {ROTATION}"


def _select(stack: Stack, backend: str, key: str, say: Callable[[str], None]) -> None:
    environment = {"PULUMI_BACKEND_URL": backend}
    provider = f"gcpkms://{key}"
    if succeeds(stack.command("stack", "export"), environment):
        say(f"stack {stack.name}: already there, its encryption stays as it is")
    else:
        # Pulumi writes `secretsprovider` and the encrypted data key into the stack file; its comments stay, if not all
        # of them where they were, and its blank lines go.
        read(stack.bare_command("stack", "init", stack.name, "--secrets-provider", provider), environment)
        say(f"stack {stack.name}: made in {backend}, its secrets encrypted with {provider}")
    read(["pulumi", "login", backend])
    say(f"pulumi is logged in to {backend}; `pulumi logout` undoes that, and the make targets do not need it")
