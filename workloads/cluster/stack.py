"""Access to a deployed stack from outside: its outputs, and the token of its Ray, which only Kubernetes has.

With Pulumi's state at hand the outputs come from `pulumi stack output`; with kubectl alone, from the ConfigMap that
holds the same values. A team has such a ConfigMap of its own, and a Ray with a token for each of its jobs.
"""

from __future__ import annotations

import argparse
import base64
import json
import re
import shlex
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from workloads.environment import CONFIG_MAP, ClusterEnvironment
from workloads.errors import AuthError, PlaceError, UsageError, WorkloadError, did_you_mean

CHECKOUT = Path(__file__).resolve().parents[2]
"""Where Pulumi finds its project file."""

_IDENTITY = ("project", "cluster_name", "ray_namespace", "ray_cluster_name")
"""Outputs by which a stack and the cluster that kubectl points at are known to be the same."""


@dataclass(frozen=True, kw_only=True)
class DeployedStack:
    """A deployed stack, as a client sees it."""

    environment: ClusterEnvironment
    """The stack's outputs."""
    token: str
    """Token of its Ray; empty for a team."""
    kubectl: tuple[str, ...]
    """`kubectl` with the context to use."""

    def __repr__(self) -> str:
        return f"Stack({self.environment.cluster_name!r})"  # never the token

    def ask(self, *words: str, given: str | None = None) -> str:
        """Kubectl's answer in the Ray namespace.

        Args:
            words: kubectl's arguments.
            given: what it reads on standard input.

        Raises:
            PlaceError: kubectl is missing or fails.
            AuthError: the API server refuses.
        """
        return _run(self._in_namespace(words), _KUBECTL, given)

    def get(self, *words: str) -> dict[str, Any]:
        """What `kubectl get` finds, as `ask`; empty for an object that is not there and may be missing."""
        return json.loads(self.ask("get", *words, "-o", "json").strip() or "{}")

    def command(self, *words: str) -> str:
        """The command line that `ask` would run, for a message: without namespace and context it would find nothing."""
        return shlex.join(self._in_namespace(words))

    def _in_namespace(self, words: Sequence[str]) -> list[str]:
        return [*self.kubectl, "--namespace", self.environment.ray_namespace, *words]

    def of_cluster(self, name: str) -> DeployedStack:
        """The same stack with another RayCluster of its namespace, reached by a port-forward of its own.

        Raises:
            AuthError: its token cannot be read.
        """
        namespace = self.environment.ray_namespace
        environment = replace(
            self.environment,
            ray_cluster_name=name,
            ray_dashboard_url="",
            ray_dashboard_command=f"kubectl --namespace {namespace} port-forward service/{name}-head-svc 8265:8265",
        )
        return replace(self, environment=environment, token=_token(self.kubectl, environment))


def add_stack_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments that select the stack."""
    group = parser.add_argument_group("which stack")
    group.add_argument("--stack", metavar="NAME", help="Pulumi stack; without it, kubectl's cluster is asked")
    group.add_argument("--context", metavar="NAME", help="kubectl context (the current one)")
    group.add_argument("--team", metavar="NAME", help="the jobs of a team of the stack, in its own namespace")


def flags(args: argparse.Namespace) -> str:
    """The same arguments as text, to repeat them in another command."""
    given = (("--stack", args.stack), ("--context", args.context), ("--team", args.team))
    return "".join(f" {flag} {shlex.quote(value)}" for flag, value in given if value)


def find(args: argparse.Namespace) -> DeployedStack:
    """The stack that the arguments name.

    Raises:
        UsageError: there is no such stack, or kubectl points at another cluster than its.
        PlaceError: pulumi or kubectl is missing or fails, or nothing is deployed.
        AuthError: kubectl may not read the token.
    """
    kubectl = _kubectl(args)
    environment = _outputs(args, kubectl)
    token = "" if environment.team else _token(kubectl, environment)
    return DeployedStack(environment=environment, token=token, kubectl=kubectl)


def without_token(*flags: str) -> DeployedStack:
    """The stack of kubectl's current cluster, to ask Kubernetes about; Ray's token is not read.

    Args:
        flags: further ones for each call of kubectl.

    Raises:
        PlaceError: kubectl is missing or fails, or nothing is deployed.
        AuthError: the API server refuses.
    """
    kubectl = ("kubectl", *flags)
    return DeployedStack(
        environment=ClusterEnvironment.from_mapping(_config_map(kubectl, None, "")), token="", kubectl=kubectl
    )


def outputs(args: argparse.Namespace) -> ClusterEnvironment:
    """The outputs of the stack that the arguments name; it takes no right to read a Secret.

    Raises:
        UsageError: there is no such stack, or kubectl points at another cluster than its.
        PlaceError: pulumi or kubectl is missing or fails, or nothing is deployed.
    """
    return _outputs(args, _kubectl(args))


def _outputs(args: argparse.Namespace, kubectl: Sequence[str]) -> ClusterEnvironment:
    given = _pulumi_outputs(args.stack) if args.stack else None  # first: a name that nobody knows is wrong anywhere
    namespace = str(given["ray_namespace"]) if given else ""
    deployed = _of_team(kubectl, args.team) if args.team else _config_map(kubectl, args.stack, namespace)
    if given is not None:
        _refuse_other_cluster(args.stack, given, deployed, _IDENTITY[:2] if args.team else _IDENTITY)
        deployed = deployed if args.team else given
    return ClusterEnvironment.from_mapping(deployed)


def origin(args: argparse.Namespace) -> str:
    """The source of `outputs`, in a few words."""
    if args.team:
        return f"team {args.team}'s ConfigMap {CONFIG_MAP}"
    return f"stack {args.stack}" if args.stack else f"the stack's ConfigMap {CONFIG_MAP}"


def old_kubectl() -> str:
    """Version of a kubectl whose port-forward needs SPDY, which a control plane's DNS endpoint does not pass on; empty
    for 1.31 and later (kubernetes/kubernetes pull request 125528), and where it does not say."""
    try:
        known = json.loads(_run(["kubectl", "version", "--client", "--output", "json"], _KUBECTL))
        version = str(known["clientVersion"]["gitVersion"])
        return version if tuple(map(int, re.findall(r"\d+", version)[:2])) < (1, 31) else ""
    except (WorkloadError, ValueError, KeyError):
        return ""


def _kubectl(args: argparse.Namespace) -> tuple[str, ...]:
    """`kubectl` with a context, as the current one may be another one soon; a pod has none."""
    context = args.context
    if not context:
        with suppress(PlaceError):
            context = _run(["kubectl", "config", "current-context"], _KUBECTL).strip()
    return ("kubectl", *(("--context", context) if context else ()))


_DEMO = 'for the platform of `make demo`, `eval "$(.venv/bin/python -m emulator env)"`'
_PULUMI = (
    "Log in to the stack's backend with `pulumi login`, or leave --stack out and use kubectl's context; "
    f"{_DEMO} brings both."
)
_KUBECTL = f"Point kubectl at the cluster (`pulumi stack output get_credentials_command` says how; {_DEMO})."


def _pulumi_outputs(stack: str) -> dict[str, Any]:
    pulumi = ("pulumi", "--cwd", str(CHECKOUT), "stack")
    try:
        return json.loads(_run([*pulumi, "output", "--json", "--stack", stack], _PULUMI))
    except PlaceError as error:
        if "no stack named" not in error.problem:
            raise
    known = [one["name"] for one in json.loads(_run([*pulumi, "ls", "--json"], _PULUMI))]
    raise UsageError(
        f"Pulumi's backend has no stack {stack}, but {', '.join(known) or 'none at all'}{did_you_mean(stack, known)}",
        "Name one of them, or leave --stack out and use kubectl's context.",
    )


def _config_map(kubectl: Sequence[str], stack: str | None, namespace: str) -> dict[str, str]:
    of_that_name = ("--field-selector", f"metadata.name={CONFIG_MAP}")
    where = ("--namespace", namespace) if namespace else ("--all-namespaces",)
    narrower = "Give --stack, which needs rights in the Ray namespace only, or name another --context."
    asked = [*kubectl, "get", "configmaps", *where, *of_that_name, "-o", "json"]
    text = _run(asked, _KUBECTL, forbidden=_RIGHT if namespace else narrower)
    known: list[Any] = json.loads(text)["items"]
    found = [one for one in known if (one.get("data") or {}).get("ray_cluster_name")]  # not those of teams
    if len(found) == 1:
        return found[0].get("data") or {}
    what = f"{len(found)} ConfigMaps" if found else "no ConfigMap"
    raise PlaceError(
        f"kubectl's cluster has {what} named {CONFIG_MAP}, where exactly one stack's Ray was expected.",
        "Name the right cluster with --context, or deploy it with `pulumi up"
        + (f" --stack {stack}`." if stack else "`."),
    )


def _of_team(kubectl: Sequence[str], team: str) -> dict[str, str]:
    asked = ("get", "configmap", CONFIG_MAP, "--ignore-not-found", "-o", "json")
    member = f"Check the name. If {team} is your team, have whoever runs `pulumi up` add you to it in oasis:teams."
    found = _run([*kubectl, "--namespace", team, *asked], _KUBECTL, forbidden=member).strip()
    data: dict[str, str] = (json.loads(found).get("data") if found else None) or {}
    if not data or data.get("ray_cluster_name"):
        raise UsageError(
            f"kubectl's cluster has no team {team}.",
            "Name one of oasis:teams (`pulumi stack output teams`), or leave --team out for the stack's own jobs.",
        )
    return data


def _refuse_other_cluster(
    stack: str, given: Mapping[str, Any], deployed: Mapping[str, str], identity: Sequence[str]
) -> None:
    for name in identity:
        if given.get(name) != deployed.get(name):
            raise UsageError(
                f"Stack {stack} has {name} {given.get(name)!r}, kubectl's cluster has {deployed.get(name)!r}.",
                "Point kubectl at the stack's cluster: `pulumi stack output get_credentials_command --stack "
                f"{stack}` prints the command; or name its context with --context.",
            )


def _token(kubectl: Sequence[str], environment: ClusterEnvironment) -> str:
    name, namespace = environment.ray_cluster_name, environment.ray_namespace
    remedy = "Wait until KubeRay has made it, or ask for the right to get this Secret."
    asked = [*kubectl, "--namespace", namespace, "get", "secret", name, "-o", "json"]
    try:
        text = _run(asked, remedy, forbidden=remedy)
        return base64.b64decode(json.loads(text)["data"]["auth_token"]).decode()
    except (PlaceError, AuthError) as error:
        raise AuthError(
            f"Ray's token, Secret {name} in namespace {namespace}, could not be read. {error.problem}", error.remedy
        ) from None
    except (KeyError, ValueError):
        raise AuthError(
            f"Secret {name} in namespace {namespace} has no readable auth_token.",
            "Deploy with spec.authOptions.mode token: `pulumi up` of this program does.",
        ) from None


_RIGHT = "Ask for the right to do this in the Ray namespace, or name another --context."
_LOGIN = re.compile(r"\(Unauthorized\)|asked for the client to provide credentials")
"""The API server's words for a login that is no longer good (k8s.io/apimachinery, api/errors/errors.go)."""
_NO_TOKEN = "gke-gcloud-auth-plugin failed"
"""A token could not be had, for want of a login or of a network (k8s.io/client-go,
plugin/pkg/client/auth/exec/exec.go)."""


def _run(command: Sequence[str], remedy: str, given: str | None = None, forbidden: str = _RIGHT) -> str:
    try:
        done = subprocess.run(command, input=given, capture_output=True, text=True, timeout=120, check=False)
    except FileNotFoundError:
        raise PlaceError(f"{command[0]} is not installed.", f"Install it. {remedy}") from None
    except subprocess.TimeoutExpired:
        raise PlaceError(f"`{' '.join(command)}` did not end in two minutes.", remedy) from None
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or ["no message"])[-1]
        problem = f"`{' '.join(command)}` failed: {reason}"
        if _LOGIN.search(reason):
            raise AuthError(problem, "Log in anew with `gcloud auth login`, then run the same command again.")
        if "(Forbidden)" in reason:
            raise AuthError(problem, forbidden)
        if _NO_TOKEN in reason:
            remedy = (
                "Log in anew with `gcloud auth login`, or check that this machine reaches Google; then run it again."
            )
        raise PlaceError(problem, remedy)
    return done.stdout
