"""Accounts, repositories, worker pools, buckets, secrets, budgets: where pulumi-gcp differs from `Resource`."""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from emulator.gcp.resources.google_client import Body, GoogleClient
from emulator.gcp.resources.resource import Resource, taken
from emulator.google.collection import last


@dataclass(frozen=True, kw_only=True)
class Account(Resource):
    """`gcp:serviceaccount/account:Account`."""

    def create(self, google: GoogleClient, inputs: Mapping[str, Any]) -> str:
        """Make the account; returns its name."""
        body = {"accountId": inputs["accountId"], "serviceAccount": self.body(inputs)}
        return google.call("POST", f"v1/projects/{inputs['project']}/serviceAccounts", body)["name"]

    def update(self, google: GoogleClient, identity: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> None:
        """Change its display name and description; the mask is in the body, in snake case."""
        after = {"displayName": "", "description": "", **self.body(new)}
        now = google.call("GET", self.path(identity))
        mask = [re.sub("([A-Z])", r"_\1", key).lower() for key in after if now.get(key, "") != after[key]]
        if mask:
            account = {**after, "etag": now["etag"]}
            google.call("PATCH", self.path(identity), {"serviceAccount": account, "updateMask": ",".join(mask)})

    def outputs(self, identity: str, answer: Mapping[str, Any], given: Mapping[str, Any]) -> Body:
        """Pulumi's outputs."""
        email, project = answer["email"], answer["projectId"]
        own = {"accountId": email.split("@")[0], "member": f"serviceAccount:{email}", "project": project}
        return {**super().outputs(identity, answer, given), **own}


@dataclass(frozen=True, kw_only=True)
class Repository(Resource):
    """`gcp:artifactregistry/repository:Repository`."""

    def body(self, inputs: Mapping[str, Any]) -> Body:
        """The REST body: policies by their ids."""
        sent = super().body(inputs)
        if policies := sent.pop("cleanupPolicies", []):
            sent["cleanupPolicies"] = {
                one["id"]: {key: value for key, value in one.items() if key != "id"} for one in policies
            }
        return sent

    def outputs(self, identity: str, answer: Mapping[str, Any], given: Mapping[str, Any]) -> Body:
        """Pulumi's outputs: policies as a list, in the order in which they were given."""
        result = super().outputs(identity, answer, given)
        if policies := answer.get("cleanupPolicies"):
            order = [one["id"] for one in given.get("cleanupPolicies", [])]
            names = sorted(policies, key=lambda name: (order.index(name) if name in order else len(order), name))
            result["cleanupPolicies"] = [{"id": name, **policies[name]} for name in names]
        return {**result, "name": last(identity)}

    def update(self, google: GoogleClient, identity: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> None:
        """Change a repository as its inputs changed; of a remote one's configuration, only the login."""
        before, after = self.body(old), self.body(new)
        mask = sorted(key for key in {*before, *after} - {_REMOTE} if before.get(key) != after.get(key))
        mask += [field for field in _LOGIN if taken(before, field) != taken(after, field)]
        if mask:
            sent = {key: after[key] for key in (*mask, _REMOTE) if key in after}
            google.call("PATCH", self.path(identity), sent, {"updateMask": ",".join(mask)})


_REMOTE = "remoteRepositoryConfig"
_LOGIN = [
    f"{_REMOTE}.upstreamCredentials.usernamePasswordCredentials.{field}"
    for field in ("username", "passwordSecretVersion")
]
"""What of a remote repository's configuration the provider changes in place (terraform-provider-google-beta v7.45.0,
resource_artifact_registry_repository.go)."""


@dataclass(frozen=True, kw_only=True)
class WorkerPool(Resource):
    """`gcp:cloudbuild/workerPool:WorkerPool`."""

    def body(self, inputs: Mapping[str, Any]) -> Body:
        """The REST body: both configurations are part of the private pool's."""
        worker, network = dict(inputs.get("workerConfig", {})), dict(inputs.get("networkConfig", {}))
        network["egressOption"] = "NO_PUBLIC_EGRESS" if worker.pop("noExternalIp", False) else "PUBLIC_EGRESS"
        return {"privatePoolV1Config": {"networkConfig": network, "workerConfig": worker}}

    def outputs(self, identity: str, answer: Mapping[str, Any], given: Mapping[str, Any]) -> Body:
        """Pulumi's outputs."""
        config = answer["privatePoolV1Config"]
        network, worker = dict(config["networkConfig"]), dict(config.get("workerConfig", {}))
        hidden = network.pop("egressOption", "") == "NO_PUBLIC_EGRESS"
        if hidden or "noExternalIp" in given.get("workerConfig", {}):
            worker["noExternalIp"] = hidden
        if "diskSizeGb" in worker:
            worker["diskSizeGb"] = int(worker["diskSizeGb"])
        shown = {"workerConfig": worker, **({"networkConfig": network} if network else {})}
        more = {"name": last(identity), "deleteTime": "", "effectiveAnnotations": dict(answer.get("annotations", {}))}
        return {**super().outputs(identity, answer, given), **shown, **more}


@dataclass(frozen=True, kw_only=True)
class Bucket(Resource):
    """`gcp:storage/bucket:Bucket`."""

    def path(self, identity: str) -> str:
        """Path of the bucket; an import may say `<project>/<bucket>`."""
        return f"storage/v1/b/{last(identity)}"

    def create(self, google: GoogleClient, inputs: Mapping[str, Any]) -> str:
        """Make the bucket; returns its name."""
        body = {"name": inputs["name"], **self.body(inputs)}
        return google.call("POST", "storage/v1/b", body, {"project": inputs["project"]})["id"]

    def body(self, inputs: Mapping[str, Any]) -> Body:
        """The REST body."""
        sent = super().body(inputs)
        if kept := sent.get("softDeletePolicy"):
            sent["softDeletePolicy"] = {key: str(value) for key, value in kept.items()}
        sent["lifecycle"] = {"rule": [_lifecycle_rule(rule) for rule in inputs.get("lifecycleRules", [])]}
        return sent

    def update(self, google: GoogleClient, identity: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> None:
        """Send the parts that changed; removed ones are null."""
        if changes := _changes(self.body(old), self.body(new)):
            google.call("PATCH", self.path(identity), changes)

    def read(self, google: GoogleClient, identity: str, given: Mapping[str, Any]) -> Body | None:
        """Outputs; for an import, also the project's id."""
        found = super().read(google, identity, given)
        if found and "project" not in found:
            found["project"] = google.call("GET", f"v1/projects/{found['projectNumber']}")["projectId"]
        return found

    def delete(self, google: GoogleClient, identity: str, outputs: Mapping[str, Any]) -> None:
        """Delete the bucket; with `forceDestroy`, its objects first."""
        path = self.path(identity)
        while outputs.get("forceDestroy") and (items := google.call("GET", f"{path}/o").get("items")):
            for item in items:
                google.call("DELETE", f"{path}/o/{quote(item['name'], safe='')}")
        google.call("DELETE", path)

    def outputs(self, identity: str, answer: Mapping[str, Any], given: Mapping[str, Any]) -> Body:
        """Pulumi's outputs."""
        result = super().outputs(identity, answer, given)
        kept = answer["softDeletePolicy"]
        result["softDeletePolicy"] = {**kept, "retentionDurationSeconds": int(kept["retentionDurationSeconds"])}
        result["projectNumber"] = int(answer["projectNumber"])
        if rules := answer.get("lifecycle", {}).get("rule"):
            result["lifecycleRules"] = rules
        result["location"] = answer["location"].lower()  # the case of a location is no difference to pulumi-gcp
        more = {key: given[key] for key in ("project", "forceDestroy") if key in given}
        return {"forceDestroy": False, **result, **more, "name": answer["name"], "url": f"gs://{answer['name']}"}


@dataclass(frozen=True, kw_only=True)
class ManagedFolder(Resource):
    """`gcp:storage/managedFolder:ManagedFolder`, whose name is a path."""

    def path(self, identity: str) -> str:
        """URL path of the folder, whose own path is escaped."""
        bucket, _, folder = identity.partition("/")
        return f"storage/v1/b/{bucket}/managedFolders/{quote(folder, safe='')}"

    def create(self, google: GoogleClient, inputs: Mapping[str, Any]) -> str:
        """Make the folder; returns its id."""
        body = {"bucket": inputs["bucket"], "name": inputs["name"]}
        google.call("POST", f"storage/v1/b/{inputs['bucket']}/managedFolders", body)
        return f"{inputs['bucket']}/{inputs['name']}"

    def update(self, google: GoogleClient, identity: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> None:
        """Do nothing: no input that can change is Google's."""

    def delete(self, google: GoogleClient, identity: str, outputs: Mapping[str, Any]) -> None:
        """Delete the folder; its objects stay."""
        force = str(bool(outputs.get("forceDestroy"))).lower()
        google.call("DELETE", self.path(identity), query={"allowNonEmpty": force})

    def places(self, identity: str) -> Body:
        """The bucket, and the folder in it."""
        bucket, _, folder = identity.partition("/")
        return {"bucket": bucket, "name": folder}


@dataclass(frozen=True, kw_only=True)
class Secret(Resource):
    """`gcp:secretmanager/secret:Secret`."""

    def body(self, inputs: Mapping[str, Any]) -> Body:
        """The REST body: `auto` is `automatic` there."""
        sent = super().body(inputs)
        if "auto" in sent.get("replication", {}):
            sent["replication"] = {"automatic": sent["replication"]["auto"]}
        return sent

    def outputs(self, identity: str, answer: Mapping[str, Any], given: Mapping[str, Any]) -> Body:
        """Pulumi's outputs."""
        result = super().outputs(identity, answer, given)
        if "automatic" in answer.get("replication", {}):
            result["replication"] = {"auto": answer["replication"]["automatic"]}
        return {**result, "effectiveAnnotations": dict(answer.get("annotations", {}))}


@dataclass(frozen=True)
class SecretVersion:
    """`gcp:secretmanager/secretVersion:SecretVersion`: its payload is sent, and never read back."""

    def create(self, google: GoogleClient, inputs: Mapping[str, Any]) -> str:
        """Add the version; returns its name, which contains the project's number."""
        given = str(inputs.get("secretData") or inputs.get("secretDataWo") or "")
        data = given if inputs.get("isSecretDataBase64") else base64.b64encode(given.encode()).decode()
        made = google.call("POST", f"v1/{inputs['secret']}:addVersion", {"payload": {"data": data}})
        verb = "enable" if inputs.get("enabled", True) else "disable"
        return google.call("POST", f"v1/{made['name']}:{verb}")["name"]

    def read(self, google: GoogleClient, identity: str, given: Mapping[str, Any]) -> Body | None:
        """Outputs, or None for a version that is destroyed or gone."""
        answer = google.find(f"v1/{identity}")
        if answer is None or answer["state"] == "DESTROYED":
            return None
        return {
            "secret": identity.partition("/versions/")[0],
            **given,
            "enabled": answer["state"] == "ENABLED",
            "name": answer["name"],
            "version": last(answer["name"]),
            "createTime": answer["createTime"],
            "destroyTime": "",
        }

    def update(self, google: GoogleClient, identity: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> None:
        """Enable or disable it; every other change replaces it."""
        google.call("POST", f"v1/{identity}:{'enable' if new.get('enabled', True) else 'disable'}")

    def delete(self, google: GoogleClient, identity: str, outputs: Mapping[str, Any]) -> None:
        """Destroy its payload; the version's number stays used up."""
        google.call("POST", f"v1/{identity}:destroy")


@dataclass(frozen=True, kw_only=True)
class Budget(Resource):
    """`gcp:billing/budget:Budget`, which Google names."""

    def path(self, identity: str) -> str:
        """Path of the budget."""
        return f"v1/{identity}"

    def create(self, google: GoogleClient, inputs: Mapping[str, Any]) -> str:
        """Make the budget; returns its name."""
        return google.call("POST", f"v1/billingAccounts/{inputs['billingAccount']}/budgets", self.body(inputs))["name"]

    def body(self, inputs: Mapping[str, Any]) -> Body:
        """The REST body, with the provider's own defaults."""
        sent = super().body(inputs)
        if "budgetFilter" in sent:
            sent["budgetFilter"] = {"creditTypesTreatment": "INCLUDE_ALL_CREDITS", **sent["budgetFilter"]}
        if "thresholdRules" in sent:
            sent["thresholdRules"] = [{"spendBasis": "CURRENT_SPEND", **rule} for rule in sent["thresholdRules"]]
        return sent

    def update(self, google: GoogleClient, identity: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> None:
        """Send the whole budget; the mask names the parts of what changed."""
        before, after = self.body(old), self.body(new)
        changed = [key for key in _BUDGET_PARTS if before.get(key) != after.get(key)]
        if changed:
            mask = ",".join(f"{key}{below}" for key in changed for below in _BUDGET_PARTS[key])
            google.call("PATCH", self.path(identity), after, {"updateMask": mask})

    def outputs(self, identity: str, answer: Mapping[str, Any], given: Mapping[str, Any]) -> Body:
        """Pulumi's outputs."""
        return {"ownershipScope": "", **super().outputs(identity, answer, given)}


_BUDGET_PARTS = {
    "displayName": ("",),
    "budgetFilter": (
        *(".projects", ".resourceAncestors", ".labels", ".calendarPeriod", ".customPeriod", ".services"),
        *(".creditTypesTreatment", ".creditTypes", ".subaccounts"),
    ),
    "amount": (".specifiedAmount.currencyCode", ".specifiedAmount.units", ".specifiedAmount.nanos"),
    "thresholdRules": ("",),
}
"""For each input of a budget that the program gives and can change, what the provider's mask names
(hashicorp/terraform-provider-google 2026-08-21, resource_billing_budget.go)."""


def _lifecycle_rule(rule: Mapping[str, Any]) -> Body:
    condition = {key: value for key, value in rule["condition"].items() if value not in (0, "", [], False)}
    return {"action": dict(rule["action"]), "condition": condition}


def _changes(old: Mapping[str, Any], new: Mapping[str, Any]) -> Body:
    """A JSON merge patch from one body to another (RFC 7396)."""
    found: Body = {}
    for key in {**old, **new}:
        before, after = old.get(key), new.get(key)
        if before == after:
            continue
        if isinstance(before, Mapping) and isinstance(after, Mapping):
            found[key] = _changes(before, after)
        else:
            found[key] = after
    return found
