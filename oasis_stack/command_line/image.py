"""`image`: builds workloads/image, pushes it to the stack's registry, and writes its digest into the stack file."""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

from oasis_stack.command_line import external_program, stack_file
from oasis_stack.command_line.external_program import ProgramError, read, show
from oasis_stack.command_line.pulumi_stack import Stack

FOLDER = Path("workloads", "image")
"""Where Dockerfile and cloudbuild.yaml lie; they are built from the checkout's root, to which their paths refer."""

BUILDERS = ("cloud-build", "docker", "podman")
PLATFORM = "linux/amd64"
LOCK = "requirements-workloads.txt"
"""Lock file of the image's packages, Ray among them: an image has this Ray, whatever the stack says."""


def image(stack: Stack, ray_version: str, builder: str, say: Callable[[str], None]) -> None:
    """Build and push an image, and write its reference, by tag and digest, into the stack file.

    Args:
        stack: whose.
        ray_version: the stack's oasis:ray.version.
        builder: one of `BUILDERS`.
        say: told of each step.

    Raises:
        ProgramError: a program is missing, the build failed, the stack was never brought up, or wants another Ray.
        StackFileError: the stack file cannot be edited.
    """
    # `pulumi` gives the outputs; `gcloud` builds, or is the registry's credential helper for a local builder.
    external_program.require("pulumi", "gcloud", *(() if builder == "cloud-build" else (builder,)))
    _check_ray(stack, ray_version)
    outputs = {name: str(value) for name, value in stack.outputs().items()}
    needed = ["image_repository", "docker_index", "python_index_url", "region", "project"]
    needed += ["image_build_worker_pool", "image_builder", "image_build_bucket"] if builder == "cloud-build" else []
    missing = [name for name in needed if not outputs.get(name)]
    if missing:
        raise ProgramError(
            f"stack {stack.name} has no output {', '.join(missing)}. Run `pulumi up -s {stack.name}` first; "
            "without a build section in its file, use --builder docker or podman."
        )
    name = f"{outputs['image_repository']}/ray"
    say(f"building {FOLDER} with {builder}; the first build fetches and pushes some GB")
    context = stack.file.parent
    tagged = f"{name}:{_tag(context, ray_version)}"
    if builder == "cloud-build":
        digest = _cloud_build(tagged, context, outputs)
    else:
        digest = _local(builder, tagged, context, outputs)
    reference = f"{tagged}@{digest}"
    changed = stack_file.set_value(stack.file, ("config", "oasis:ray", "image"), reference)
    say(f"{stack.file.name}: oasis:ray.image {'is now' if changed else 'already is'} {reference}")
    say(
        f"next: `pulumi up -s {stack.name}`, then `python -m oasis_stack restart --stack {stack.name}`; until then, "
        "running Ray pods keep their image"
    )


def _check_ray(stack: Stack, version: str) -> None:
    locked = re.search(r"^ray==([0-9.]+)", (stack.file.parent / LOCK).read_text(encoding="utf-8"), re.MULTILINE)
    if locked is None or locked[1] != version:
        raise ProgramError(
            f"oasis:ray.version is {version} in {stack.file.name}; allowed: the Ray that {LOCK} puts into the image, "
            f"{locked[1] if locked else 'which names none'}. Set it to that, or change ray in pyproject.toml and BASE "
            f"in {FOLDER}/Dockerfile, and run `make pin`."
        )


def _tag(context: Path, ray_version: str) -> str:
    # Each build has a tag of its own and keeps it: the registry soon deletes what is untagged, and a stack may run it.
    parts = [ray_version, datetime.now(UTC).strftime("%Y%m%d-%H%M%S")]
    with suppress(ProgramError):  # an unpacked archive has no commit
        parts.append(read(["git", "-C", str(context), "rev-parse", "--short", "HEAD"]).strip())
    return "-".join(filter(None, parts))


def _cloud_build(tagged: str, context: Path, outputs: Mapping[str, str]) -> str:
    name, _, tag = tagged.rpartition(":")
    substitutions = {
        "_IMAGE": name,
        "_TAG": tag,
        "_DOCKER_INDEX": outputs["docker_index"],
        "_PYTHON_INDEX_URL": outputs["python_index_url"],
    }
    bucket = f"gs://{outputs['image_build_bucket']}"
    status = show(
        [
            *("gcloud", "builds", "submit", str(context), "--config", str(context / FOLDER / "cloudbuild.yaml")),
            *("--project", outputs["project"], "--region", outputs["region"]),
            *("--worker-pool", outputs["image_build_worker_pool"]),
            *("--service-account", f"projects/{outputs['project']}/serviceAccounts/{outputs['image_builder']}"),
            *("--gcs-source-staging-dir", f"{bucket}/source", "--gcs-log-dir", f"{bucket}/logs"),
            *("--substitutions", ",".join(f"{key}={value}" for key, value in substitutions.items())),
        ]
    )
    if status != 0:
        raise ProgramError(f"the build failed with status {status}; its log is above and in {bucket}/logs")
    described = ["gcloud", "artifacts", "docker", "images", "describe", tagged, "--format", "json"]
    return _digest(str(json.loads(read(described))["image_summary"]["digest"]))


def _local(builder: str, tagged: str, context: Path, outputs: Mapping[str, str]) -> str:
    name = tagged.rpartition(":")[0]
    token = read(["gcloud", "auth", "print-access-token"]).strip()
    registry = name.split("/")[0]
    read([builder, "login", "--username", "oauth2accesstoken", "--password-stdin", registry], stdin=token)
    arguments = {"DOCKER_INDEX": outputs["docker_index"], "PYTHON_INDEX_URL": outputs["python_index_url"]}
    with tempfile.TemporaryDirectory() as folder:
        # The build reads the private Python index with this token; as a build secret it stays out of the layers.
        secret = Path(folder, "token")
        secret.touch(mode=0o600)
        secret.write_text(token, encoding="utf-8")
        # Of the nodes, which the machine that builds may not be like: a laptop's processor is ARM as often as not.
        build = [builder, "build", "--platform", PLATFORM, "--file", str(context / FOLDER / "Dockerfile")]
        build += ["--tag", tagged]
        build += ["--secret", f"id=python_index_token,src={secret}"]
        for key, value in arguments.items():
            build += ["--build-arg", f"{key}={value}"]
        if show([*build, str(context)]) != 0:
            raise ProgramError("the build failed; its log is above")
    if show([builder, "push", tagged]) != 0:
        raise ProgramError(f"{tagged} was built, but could not be pushed; see above. The stack file was not changed.")
    pushed: list[str] = json.loads(read([builder, "image", "inspect", "--format", "{{json .RepoDigests}}", tagged]))
    return _digest(next((known for known in pushed if known.startswith(f"{name}@")), ""))


def _digest(text: str) -> str:
    digest = text.rpartition("@")[2]
    if not digest.startswith("sha256:") or len(digest) != 71:
        raise ProgramError(f"the image was pushed, but its digest could not be read ({text!r}). Run the command again.")
    return digest
