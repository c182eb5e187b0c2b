"""The resources of a stack as a tree, and the order of their deletion, from a run of the program without any cloud."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator

from oasis_stack.command_line.offline import Deployment, Registered


def lines(stack: Deployment) -> Iterator[str]:
    """The tree with counts, and then the order of `pulumi destroy`."""
    made = [found for found in stack if found.custom]
    components = sorted((found for found in stack if not found.custom), key=lambda found: found.name)
    yield f"Resources: {len(made)} in {len(components)} components, made by `pulumi up`"
    for component in components:
        yield f"  {component.name}: {component.type.rpartition(':')[2]}"
        names: dict[str, list[str]] = defaultdict(list)
        for child in stack.children(component):
            names[kind(child)].append(child.name)
        for label, found in names.items():
            yield f"    {label}{f' x {len(found)}' if len(found) > 1 else ''}: {_several(found)}"
    yield ""
    yield "Order of `pulumi destroy`: each step once those before it are gone"
    for number, step in enumerate(destroy_order(stack), 1):
        counts = Counter(map(kind, step))
        yield f"  {number:>2}. " + ", ".join(f"{label} x {n}" if n > 1 else label for label, n in counts.items())
    kept = sorted(f"{kind(found)} {found.name}" for found in made if found.retain_on_delete)
    yield f"  Stays: {', '.join(kept) or 'nothing'}"


def destroy_order(stack: Deployment) -> list[list[Registered]]:
    """Resources that are deleted, in the steps of `pulumi destroy`."""
    steps = (
        [found for found in step if found.custom and not found.retain_on_delete]
        for step in deletion_steps(stack, stack)
    )
    return [sorted(step, key=lambda found: (kind(found), found.name)) for step in steps if step]


def deletion_steps(stack: Deployment, going: Iterable[Registered]) -> list[list[Registered]]:
    """The resources to delete, in the steps in which Pulumi's engine deletes them; each step ends before the next
    begins. A resource is in the last step before those of the resources that it was made after (pulumi/pulumi v3.259.0,
    pkg/resource/deploy/step_generator.go, ScheduleDeletes)."""
    left = {found.urn: found for found in going}
    steps: list[list[Registered]] = []
    while left:
        steps.append([found for found in left.values() if not stack.made_before(found) & left.keys()])
        for found in steps[-1]:
            del left[found.urn]
    return steps[::-1]


def kind(resource: Registered) -> str:
    """A resource's type in short: `compute.Subnetwork`, `RayCluster`, `wait.NetworkFree`."""
    package, module, name = resource.type.split(":")
    if package == "kubernetes":
        return name
    if package == "pulumi-python":
        return f"wait.{name}"
    if package == "pulumi":
        return f"{name} provider"
    return f"{re.sub('/.*', '', module)}.{name}"


def _several(names: list[str]) -> str:
    return ", ".join(names) if len(names) <= 4 else f"{names[0]}, ..., {names[-1]}"
