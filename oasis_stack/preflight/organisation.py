"""Organisation policies that would stop `up` of this stack; policies that it obeys in any case are left out."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from oasis_stack.facts.retention import DAY_SECONDS
from oasis_stack.preflight.finding import Finding, bad, good, unknown
from oasis_stack.preflight.google import Google, UnseenError
from oasis_stack.settings.schema import Settings

Rules = list[Mapping[str, Any]]
"""Of an effective policy (Organization Policy API v2, `PolicySpec.rules`)."""


_CONTINENTS = {"africa", "asia", "australia", "europe", "me", "northamerica", "southamerica", "us"}
"""What Google's regions, and the groups of them, begin with."""


class Doubt(str):
    """What a policy may forbid, depending on something that is not known here."""


@dataclass(frozen=True, kw_only=True)
class Constraint:
    """One constraint, and how it stops the stack."""

    name: str
    concerns: Callable[[Settings], bool] = lambda settings: True
    """Whether the stack makes what it is about."""
    stops: Callable[[Rules, Settings], str | Doubt]
    """What it forbids of it; empty where nothing."""
    remedy: str


def enforced(rules: Rules) -> bool:
    """True for a boolean constraint that is on."""
    return any(rule.get("enforce") for rule in rules)


def refused(rules: Rules, values: frozenset[str]) -> bool:
    """True where a list constraint takes none of some values, each of which means the same thing.

    Args:
        rules: of the constraint.
        values: as it may be written, as a value or as a group (`in:us-locations`).
    """
    if any(rule.get("denyAll") for rule in rules):
        return True
    lists = [rule.get("values", {}) for rule in rules]
    denied = {value for one in lists for value in one.get("deniedValues", [])}
    allowed = {value for one in lists for value in one.get("allowedValues", [])}
    named = {f"is:{value}" for value in values} | values
    return bool(denied & named) or (bool(allowed) and not allowed & named)


def _locations(rules: Rules, settings: Settings) -> str | Doubt:
    # A region does not stand for its zones, and only a group holds both ("Restricting resource locations").
    groups = {f"in:{settings.region}-locations", f"in:{settings.region.partition('-')[0]}-locations"}
    places = dict.fromkeys((settings.region, settings.zone), groups)
    if settings.wandb is not None and not settings.wandb.adopt:
        # Of a secret with automatic replication (Secret Manager documentation, "Choose a replication policy").
        places["global"] = set()
    stopped = [place for place, held in places.items() if refused(rules, frozenset({place, *held}))]
    listed = {value for rule in rules for values in rule.get("values", {}).values() for value in values}
    others = sorted(
        value for value in listed - groups if value.startswith("in:") and not _is_elsewhere(value, settings)
    )
    if others and not any(rule.get("denyAll") for rule in rules):
        return Doubt(f"whether {' and '.join(places)} are in {', '.join(others)} is not known here")
    return f"nothing may be made in {' and '.join(stopped)}" if stopped else ""


def _is_elsewhere(group: str, settings: Settings) -> bool:
    """True for a group by another continent or region, which cannot hold this region."""
    place = group.removeprefix("in:").removesuffix("-locations")
    continent = settings.region.partition("-")[0]
    return place.partition("-")[0] in _CONTINENTS - {continent} and (place in _CONTINENTS or place[-1:].isdigit())


def _services(apis: frozenset[str]) -> Callable[[Rules, Settings], str]:
    def stopped(rules: Rules, settings: Settings) -> str:
        off = sorted(api for api in apis if refused(rules, frozenset({api})))
        return f"{', '.join(off)} may not be used" if off else ""

    return stopped


def _keys(rules: Rules, settings: Settings) -> str:
    kept = ("artifactregistry", "compute", "container", "secretmanager", "storage")
    denied = {value.removeprefix("is:") for rule in rules for value in rule.get("values", {}).get("deniedValues", [])}
    wanted = sorted(f"{api}.googleapis.com" for api in kept if f"{api}.googleapis.com" in denied)
    return (
        f"{', '.join(wanted)} must be encrypted with keys of yours, which this program does not set" if wanted else ""
    )


def _members(rules: Rules, settings: Settings) -> str | Doubt:
    if not enforced(rules) and not any(rule.get("values", {}).get("allowedValues") for rule in rules):
        return ""
    teams = ", ".join(team.name for team in settings.teams)
    return Doubt(f"whether it admits the members of {teams} is not known here")


_ON_MEMBERS = [
    Constraint(
        name=name,
        concerns=lambda settings: bool(settings.teams),
        stops=_members,
        remedy="Ask whoever maintains it: Google refuses others, as not belonging to a permitted customer.",
    )
    for name in ("iam.allowedPolicyMemberDomains", "iam.managed.allowedPolicyMembers")
]
"""Who may be granted a role, by customers or sets of principals whose members are not known here ("Restrict
identities with domain-restricted sharing")."""


def _on(what: str) -> Callable[[Rules, Settings], str]:
    """A boolean constraint, which forbids this when it is on."""
    return lambda rules, settings: what if enforced(rules) else ""


_ON_ACCOUNTS = [
    Constraint(
        name=name,
        stops=_on("no service account may be made"),
        remedy="Have the project exempted: nodes and image builds have accounts of their own.",
    )
    for name in ("iam.disableServiceAccountCreation", "iam.managed.disableServiceAccountCreation")
]


def _soft_delete(rules: Rules, settings: Settings) -> str:
    # Of buckets to be made; those that are there already may keep what they have.
    kept = {
        f"oasis:{section}.soft_delete_days": bucket.soft_delete_days
        for section, bucket in (("data", settings.data), ("runs", settings.runs))
        if not bucket.adopt
    }
    if settings.build is not None:
        kept["the bucket of oasis:build"] = 0
    stopped = [
        f"{days * DAY_SECONDS} s ({what})"
        for what, days in kept.items()
        if refused(rules, frozenset({str(days * DAY_SECONDS)}))
    ]
    return f"no bucket may keep deleted objects for {' or '.join(stopped)}" if stopped else ""


_ON_BUCKETS = [
    Constraint(
        name="storage.softDeletePolicySeconds",
        stops=_soft_delete,
        remedy="Set these settings to days that it allows; without oasis:build there is no bucket of it.",
    ),
    Constraint(
        name="storage.retentionPolicySeconds",
        stops=lambda rules, settings: (
            "every new bucket must have a retention policy, with which no checkpoint could be replaced"
            if refused(rules, frozenset({"none"}))  # a list of durations
            else ""
        ),
        remedy="Have the project exempted.",
    ),
]
"""Durations that a new bucket must have one of (Cloud Storage documentation, "Organization policy constraints for Cloud
Storage")."""


def _network_policy(rules: Rules, settings: Settings) -> str | Doubt:
    return Doubt("whether Dataplane V2, which enforces them, is enough is not known here") if enforced(rules) else ""


def _forwarding(rules: Rules, settings: Settings) -> str | Doubt:
    # A cluster was refused in 2019 (hashicorp/terraform-provider-google issue 4989).
    denied = any(rule.get("denyAll") for rule in rules)
    return Doubt("whether GKE's nodes still forward packets is not known here") if denied else ""


_EXEMPTED = "Have the project exempted."

_ON_CLUSTERS = [
    Constraint(
        name="container.managed.enableSecretsEncryption",
        concerns=lambda settings: settings.cluster.secrets_encryption_key is None,
        stops=_on("a cluster must encrypt Secrets with a key of yours"),
        remedy="Set oasis:cluster.secrets_encryption_key.",
    ),
    Constraint(
        name="container.managed.enableGoogleGroupsRBAC",
        concerns=lambda settings: settings.cluster.security_group is None,
        stops=_on("a cluster must know your Google groups"),
        remedy="Set oasis:cluster.security_group.",
    ),
    Constraint(
        name="container.managed.enableControlPlaneDNSOnlyAccess",
        concerns=lambda settings: settings.cluster.endpoint == "ip",
        stops=_on("a cluster's control plane may have no address"),
        remedy="Leave oasis:cluster.endpoint at dns.",
    ),
    Constraint(
        name="container.managed.enableBinaryAuthorization",
        stops=_on("a cluster must have Binary Authorization, which this program does not set"),
        remedy=_EXEMPTED,
    ),
    Constraint(
        name="container.managed.enableSecurityBulletinNotifications",
        stops=_on("a cluster must tell a Pub/Sub topic of security bulletins, which this program does not set"),
        remedy=_EXEMPTED,
    ),
    Constraint(name="container.managed.enableNetworkPolicy", stops=_network_policy, remedy=_EXEMPTED),
    Constraint(
        name="iam.disableWorkloadIdentityClusterCreation",
        stops=_on("no cluster may have Workload Identity Federation, by which pods reach their buckets"),
        remedy=_EXEMPTED,
    ),
    Constraint(name="compute.vmCanIpForward", stops=_forwarding, remedy=_EXEMPTED),
    Constraint(
        name="compute.restrictNonConfidentialComputing",
        stops=lambda rules, settings: (
            "every machine must be a Confidential VM, which no node of this program is"
            if any(refused(rules, frozenset({f"{api}.googleapis.com"})) for api in ("compute", "container"))
            else ""
        ),
        remedy=_EXEMPTED,
    ),
]
"""What a cluster must have or must not. Those of the same kind that this program's clusters obey are left out: private
and Shielded nodes, Workload Identity, logging, accounts of their own for nodes; no ABAC, no client certificates, no
read-only kubelet port, no roles for everybody (Organization Policy Service, "Organization policy constraints")."""


def _whole(what: str) -> Callable[[Rules, Settings], str]:
    """A list constraint that names resources: stops the stack only if it denies all; names are not judged."""
    return lambda rules, settings: what if any(rule.get("denyAll") for rule in rules) else ""


def constraints(apis: frozenset[str]) -> list[Constraint]:
    """Those that can stop a stack with these APIs (Organization Policy Service, "Organization policy constraints")."""
    return [
        Constraint(
            name="gcp.resourceLocations",
            stops=_locations,
            remedy="Have that allowed for the project, or name another region in oasis:region. Only the W&B secret "
            "needs global: without oasis:wandb there is none.",
        ),
        Constraint(
            name="gcp.restrictServiceUsage",
            stops=_services(apis),
            remedy="Have them allowed for the project: the stack cannot do without them.",
        ),
        Constraint(
            name="gcp.restrictNonCmekServices",
            stops=_keys,
            remedy="Have the project exempted, or use one without this policy.",
        ),
        *_ON_ACCOUNTS,
        *_ON_MEMBERS,
        *_ON_BUCKETS,
        *_ON_CLUSTERS,
        Constraint(
            name="compute.restrictCloudNATUsage",
            stops=_whole("no subnet may use Cloud NAT, by which nodes without addresses reach the internet"),
            remedy="Have the stack's subnets allowed.",
        ),
        Constraint(
            name="compute.restrictVpcPeering",
            concerns=lambda settings: settings.build is not None and settings.build.peered,
            stops=_whole("no network may be peered"),
            remedy="Leave oasis:build.peered out, or have servicenetworking's network allowed.",
        ),
        Constraint(
            name="compute.restrictLoadBalancerCreationForTypes",
            concerns=lambda settings: settings.ray.balanced,
            stops=lambda rules, settings: (
                "no internal load balancer may be made"
                if refused(rules, frozenset({"INTERNAL_TCP_UDP", "in:INTERNAL"}))
                else ""
            ),
            remedy="Leave oasis:ray.dashboard_access at port-forward, or have INTERNAL_TCP_UDP allowed.",
        ),
    ]


def check(settings: Settings, google: Google, apis: frozenset[str]) -> Iterator[Finding]:
    """Which effective policies of the project stop the stack."""
    meant = [one for one in constraints(apis) if one.concerns(settings)]

    def look(constraint: Constraint) -> Finding | None:
        path = f"v2/projects/{google.project}/policies/{constraint.name}:getEffectivePolicy"
        try:
            policy = google.get("orgpolicy", path) or {}
        except UnseenError as unseen:
            return unknown("you may not read the policies" if unseen.denied else unseen.problem, unseen.remedy)
        what = constraint.stops((policy.get("spec") or {}).get("rules", []), settings)
        if isinstance(what, Doubt):
            return unknown(f"the policy {constraint.name}: {what}", constraint.remedy)
        return bad(f"the policy {constraint.name}: {what}", constraint.remedy) if what else None

    with ThreadPoolExecutor(len(meant)) as pool:
        found = list(dict.fromkeys(filter(None, pool.map(look, meant))))  # one that is off is off for all of them
    yield from found or [good(f"none of {len(meant)} organisation policies stops it")]
