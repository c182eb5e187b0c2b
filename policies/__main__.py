"""The policy pack: `rules` as Pulumi's policies. Run by the language host, which the engine asks for it."""

from contextlib import suppress
from typing import Any

from pulumi_policy import (
    EnforcementLevel,
    PolicyConfigSchema,
    PolicyPack,
    PolicyResource,
    ReportViolation,
    ResourceValidationArgs,
    ResourceValidationPolicy,
    StackValidationArgs,
    StackValidationPolicy,
)
from pulumi_policy.proxy import UnknownValueError
from rules import RULES, Resource, ResourceRule, Rule, StackRule


def for_each_resource(rule: ResourceRule) -> ResourceValidationPolicy:
    """The policy of a rule that looks at one resource."""

    def validate(args: ResourceValidationArgs, report: ReportViolation) -> None:
        # What a preview does not know yet, as the member of a grant, the update asks about again before it makes it.
        with suppress(UnknownValueError):
            found = Resource(type=args.resource_type, name=args.name, properties=args.props)
            for message in rule.check(found, rule.configured(args.get_config())):
                report(message, None)

    return ResourceValidationPolicy(rule.name, rule.meaning, validate, level(rule), schema(rule))


def for_the_stack(rule: StackRule) -> StackValidationPolicy:
    """The policy of a rule that looks at all resources together."""

    def validate(args: StackValidationArgs, report: ReportViolation) -> None:
        resources = [Resource(type=one.resource_type, name=one.name, properties=known(one)) for one in args.resources]
        for message in rule.check(resources, rule.configured(args.get_config())):
            report(message, None)

    return StackValidationPolicy(rule.name, rule.meaning, validate, level(rule), schema(rule))


def known(resource: PolicyResource) -> dict[str, Any]:
    """Its properties, without those that a preview does not know yet: what Google adds to a resource that is new."""
    found: dict[str, Any] = {}
    for key in resource.props:
        with suppress(UnknownValueError):
            found[key] = resource.props[key]
    return found


def level(rule: Rule) -> EnforcementLevel:
    """What a violation does, unless the pack's configuration says otherwise."""
    return EnforcementLevel.MANDATORY if rule.mandatory else EnforcementLevel.ADVISORY


def schema(rule: Rule) -> PolicyConfigSchema:
    """What the pack's configuration may say beside the level."""
    return PolicyConfigSchema(properties={key: dict(value) for key, value in rule.settings.items()})


PolicyPack("oasis", [for_the_stack(rule) if isinstance(rule, StackRule) else for_each_resource(rule) for rule in RULES])
