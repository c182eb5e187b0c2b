"""Runs a Pulumi program without an engine or a cloud, under the SDK's mocks, and collects all that it registers.

For `plan`, and for tests, which are plain asserts on the result. Look resources up by (type, name): the order in which
Pulumi registers them varies from run to run.
"""

from __future__ import annotations

import asyncio
import contextvars
import json
import runpy
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from google.protobuf import empty_pb2
from pulumi.runtime import config as runtime_config
from pulumi.runtime import mocks, rpc, settings, stack

from oasis_stack.command_line.stack_file import ROOT

PROJECT_NUMBER = "123456789012"
"""What `getProject` answers as the number of every project."""

STACK_TYPE = "pulumi:pulumi:Stack"

# Properties whose keys are the user's own words, where an underscore is no sign of a mistyped argument.
FREE_KEYS = frozenset({"labels", "resourceLabels", "metadata", "tags"})


@dataclass(frozen=True, kw_only=True)
class Registered:
    """One resource as the engine received it."""

    type: str
    name: str
    urn: str
    custom: bool
    inputs: dict[str, Any]
    """Plain values; what was secret is named in `secret_inputs`. Unknown ones (preview) are `pulumi.output.Unknown`."""
    secret_inputs: frozenset[str]
    """Top-level inputs that arrived wrapped as secrets."""
    parent: str
    dependencies: frozenset[str]
    """URNs of `depends_on` and of the resources whose outputs are in the inputs."""
    property_dependencies: dict[str, frozenset[str]]
    provider: str
    """Reference `<urn>::<id>` of an explicit provider, else empty."""
    protect: bool
    retain_on_delete: bool
    delete_before_replace: bool
    ignore_changes: frozenset[str]
    replace_on_changes: frozenset[str]
    secret_outputs: frozenset[str]
    import_id: str
    timeouts: dict[str, str]
    """Custom timeouts as given: `create`, `update`, `delete`."""
    outputs: dict[str, Any] = field(default_factory=dict)
    """A component's `register_outputs`, once the program has ended."""


class Deployment:
    """Everything that a program registered, and what it exported."""

    def __init__(self) -> None:
        self._resources: dict[tuple[str, str], Registered] = {}
        self._by_urn: dict[str, Registered] = {}
        self.exports: dict[str, Any] = {}
        self.secret_exports: frozenset[str] = frozenset()

    def __iter__(self) -> Iterator[Registered]:
        return iter(self._resources.values())

    def __len__(self) -> int:
        return len(self._resources)

    def get(self, type_: str, name: str) -> Registered:
        """The resource with this type token and logical name."""
        found = self._resources.get((type_, name))
        if found is None:
            raise LookupError(f"no {type_} named {name!r}; of this type: {[r.name for r in self.of_type(type_)]}")
        return found

    def of_type(self, type_: str) -> list[Registered]:
        """Every resource of a type, sorted by logical name."""
        return sorted((r for r in self if r.type == type_), key=lambda r: r.name)

    def only(self, type_: str) -> Registered:
        """The one resource of a type."""
        found = self.of_type(type_)
        if len(found) != 1:
            raise LookupError(f"not one {type_} but {[r.name for r in found]}")
        return found[0]

    def by_urn(self, urn: str) -> Registered:
        """The resource with this URN."""
        return self._by_urn[urn]

    def children(self, parent: Registered) -> list[Registered]:
        """Direct children, sorted by type and name."""
        return sorted((r for r in self if r.parent == parent.urn), key=lambda r: (r.type, r.name))

    def made_before(self, resource: Registered) -> set[str]:
        """URNs that `resource` itself names: its dependencies, parent and provider."""
        return {*resource.dependencies, resource.parent, resource.provider.rpartition("::")[0]} - {""}

    def created_before(self, resource: Registered) -> set[str]:
        """URNs made before `resource` and deleted after it: through dependencies, parents and providers."""
        seen: set[str] = set()
        waiting = [resource.urn]
        while waiting:
            current = self._by_urn.get(waiting.pop())
            if current is None:  # the stack itself
                continue
            edges = self.made_before(current) - seen
            seen |= edges
            waiting += edges
        return seen - {resource.urn}

    def is_before(self, first: Registered, then: Registered) -> bool:
        """Whether `first` is made before `then` (and so deleted after it)."""
        return first.urn in self.created_before(then)

    def add(self, resource: Registered) -> None:
        """Keep one registration; two of the same type and name would be two resources that fight over one name."""
        key = (resource.type, resource.name)
        if key in self._resources:
            raise ValueError(f"registered twice: {key}")
        self._resources[key] = resource
        self._by_urn[resource.urn] = resource


def deploy_stack(
    config: Mapping[str, object],
    preview: bool = False,
    answers: mocks.Mocks | None = None,
    registered: Deployment | None = None,
) -> Deployment:
    """What the wiring diagram registers for the `config` section of a stack file."""
    secrets = frozenset({"oasis:wandb_api_key"})
    return deploy(lambda: runpy.run_path(str(ROOT / "__main__.py")), config, preview, secrets, answers, registered)


def deploy(
    program: Callable[[], object],
    config: Mapping[str, object] | None = None,
    preview: bool = False,
    secrets: frozenset[str] = frozenset(),
    answers: mocks.Mocks | None = None,
    registered: Deployment | None = None,
) -> Deployment:
    """Run `program` with `config` (namespaced keys; what is not text becomes JSON); return what it registered.

    Every resource comes out as `answers` says, or else as it went in, with what Google computes. Each is kept in
    `registered` before that, for answers that look there.
    An exception of the program, of an `apply`, of `answers` or of the mock's own checks is raised here.
    """
    monitor = _Monitor(answers or OfflineCloud(preview), Deployment() if registered is None else registered)
    text = {key: value if isinstance(value, str) else json.dumps(value) for key, value in (config or {}).items()}

    async def drained() -> None:
        # What fails is raised. Tasks that fail beside it would say so when they are collected: in another test, and
        # while that one parses, in which Python 3.11 cannot be disturbed by the parser that draws a traceback.
        asyncio.get_running_loop().set_exception_handler(lambda *_: None)
        await stack.run_in_stack(settled)

    async def settled() -> None:
        program()
        # Pulumi waits for one task at a time, and adds itself to all others each time: half of what a run takes.
        while others := asyncio.all_tasks() - {asyncio.current_task()}:
            done, _ = await asyncio.wait(others, return_when=asyncio.FIRST_EXCEPTION)
            if any(task.cancelled() or task.exception() for task in done):
                return

    def run() -> None:
        settings.configure(
            settings.Settings(
                project="oasis",
                stack="test",
                organization="organization",
                monitor=monitor,
                engine=mocks.MockEngine(None),
                dry_run=preview,
            )
        )
        runtime_config.set_all_config(text, sorted(secrets))
        asyncio.run(drained())

    # Pulumi keeps its whole state in context variables: a copied context leaves nothing behind for the next test.
    contextvars.copy_context().run(run)
    return monitor.deployment


class _Monitor(mocks.MockMonitor):
    """Keeps each whole request: `MockResourceArgs` carries neither parent nor dependencies nor options."""

    def __init__(self, cloud: mocks.Mocks, deployment: Deployment) -> None:
        super().__init__(cloud)
        self.deployment = deployment
        self._lock = threading.Lock()

    def RegisterResource(self, request: Any) -> Any:
        if request.type != STACK_TYPE:
            inputs, secret_inputs = _plain(request.object)
            inputs.pop("__provider", None)  # a dynamic resource's pickled provider
            if request.type.startswith("gcp:"):
                _refuse_snake_case(request.type, request.name, inputs)
            with self._lock:
                self.deployment.add(
                    _registered(
                        request, self.make_urn(request.parent, request.type, request.name), inputs, secret_inputs
                    )
                )
        return super().RegisterResource(request)

    def RegisterResourceOutputs(self, request: Any) -> empty_pb2.Empty:
        outputs, secret = _plain(request.outputs)
        if request.urn.split("::")[2] == STACK_TYPE:
            self.deployment.exports, self.deployment.secret_exports = outputs, secret
        else:
            self.deployment.by_urn(request.urn).outputs.update(outputs)
        return empty_pb2.Empty()


def _registered(request: Any, urn: str, inputs: dict[str, Any], secret_inputs: frozenset[str]) -> Registered:
    timeouts = {key: getattr(request.customTimeouts, key) for key in ("create", "update", "delete")}
    return Registered(
        type=request.type,
        name=request.name,
        urn=urn,
        custom=request.custom,
        inputs=inputs,
        secret_inputs=secret_inputs,
        parent=request.parent,
        dependencies=frozenset(request.dependencies),
        property_dependencies={key: frozenset(value.urns) for key, value in request.propertyDependencies.items()},
        provider=request.provider,
        protect=request.protect,
        retain_on_delete=request.retainOnDelete,
        delete_before_replace=request.deleteBeforeReplace,
        ignore_changes=frozenset(request.ignoreChanges),
        replace_on_changes=frozenset(request.replaceOnChanges),
        secret_outputs=frozenset(request.additionalSecretOutputs),
        import_id=request.importId,
        timeouts={key: value for key, value in timeouts.items() if value},
    )


def _plain(properties: Any) -> tuple[dict[str, Any], frozenset[str]]:
    values = rpc.deserialize_properties(properties, keep_unknowns=True)
    secret = frozenset(key for key, value in values.items() if rpc.is_rpc_secret(value))
    return {key: rpc.unwrap_rpc_secret(value) for key, value in values.items()}, secret


def _refuse_snake_case(type_: str, name: str, value: object) -> None:
    # A mistyped key of a dictionary literal travels to the provider untranslated, and is ignored there.
    if isinstance(value, dict):
        for key, inner in value.items():
            if "_" in key.strip("_"):
                raise ValueError(f"{type_} {name!r}: argument {key!r} is in snake_case, so Pulumi does not know it")
            if key not in FREE_KEYS:
                _refuse_snake_case(type_, name, inner)
    elif isinstance(value, list):
        for inner in value:
            _refuse_snake_case(type_, name, inner)


class OfflineCloud(mocks.Mocks):
    """Answers with what was asked for, plus what Google computes and components read."""

    def __init__(self, preview: bool) -> None:
        self._preview = preview

    def new_resource(self, args: mocks.MockResourceArgs) -> tuple[str, dict[str, Any]]:
        # The name is echoed: an output that the mock lacks loses the dependency edge that goes through it.
        state = {"name": f"{args.name}-1a2b3c4", **args.inputs}
        if args.typ.startswith("kubernetes:") and "metadata" in state:
            state["metadata"] = {"name": f"{args.name}-1a2b3c4", **state["metadata"]}
        if self._preview:
            # No id and nothing computed: otherwise a preview would show resources that a real one cannot see yet.
            return "", state
        state |= _computed(args.typ, state)
        return args.resource_id or str(state.get("id", state["name"])), state

    def call(self, args: mocks.MockCallArgs) -> tuple[dict[str, Any], list[tuple[str, str]]]:
        if args.token == "gcp:organizations/getProject:getProject":
            return {"number": PROJECT_NUMBER, **args.args}, []
        raise LookupError(f"the offline cloud has no function {args.token}")


def _computed(type_: str, state: dict[str, Any]) -> dict[str, Any]:
    project, name = state.get("project", "project"), state["name"]
    match type_:
        case "gcp:serviceaccount/account:Account":
            email = f"{state['accountId']}@{project}.iam.gserviceaccount.com"
            return {
                "email": email,
                "member": f"serviceAccount:{email}",
                "name": f"projects/{project}/serviceAccounts/{email}",
            }
        case "gcp:container/cluster:Cluster":
            return {
                "endpoint": "203.0.113.10",
                "masterAuth": {"clusterCaCertificate": "Q0E="},
                "controlPlaneEndpointsConfig": {
                    **state.get("controlPlaneEndpointsConfig", {}),
                    "dnsEndpointConfig": {
                        **state.get("controlPlaneEndpointsConfig", {}).get("dnsEndpointConfig", {}),
                        "endpoint": f"gke-0a1b-{PROJECT_NUMBER}.{state['location']}.gke.goog",
                    },
                },
            }
        case "gcp:compute/network:Network":
            path = f"projects/{project}/global/networks/{name}"
            return {"id": path, "selfLink": f"https://www.googleapis.com/compute/v1/{path}"}
        case "gcp:compute/subnetwork:Subnetwork":
            path = f"projects/{project}/regions/{state['region']}/subnetworks/{name}"
            return {"id": path, "selfLink": f"https://www.googleapis.com/compute/v1/{path}"}
        case "gcp:secretmanager/secret:Secret":
            return {
                "id": f"projects/{project}/secrets/{state['secretId']}",
                "name": f"projects/{PROJECT_NUMBER}/secrets/{state['secretId']}",
            }
        case "gcp:artifactregistry/repository:Repository":
            path = f"projects/{project}/locations/{state['location']}/repositories/{state['repositoryId']}"
            return {"id": path, "name": state["repositoryId"]}
        case "gcp:cloudbuild/workerPool:WorkerPool":
            return {"id": f"projects/{project}/locations/{state['location']}/workerPools/{name}"}
        case "gcp:compute/address:Address":
            return {"address": "10.64.0.99"}
        case "gcp:storage/bucket:Bucket":
            return {"url": f"gs://{name}"}
        case _:
            return {}
