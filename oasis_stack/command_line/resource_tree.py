"""The resources of a stack as a tree, and the order of their deletion, from a run of the program without any cloud."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator

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
    """Resources that are deleted, in steps: each is in the first step after all that was made after it."""
    users: dict[str, list[Registered]] = defaultdict(list)
    for found in stack:
        for urn in stack.made_before(found):
            users[urn].append(found)
    step: dict[str, int] = {}

    def place(found: Registered) -> int:
        if found.urn not in step:
            step[found.urn] = max((place(user) + user.custom for user in users[found.urn]), default=0)
        return step[found.urn]

    steps: dict[int, list[Registered]] = defaultdict(list)
    for found in sorted(stack, key=lambda found: (kind(found), found.name)):
        if found.custom and not found.retain_on_delete:
            steps[place(found)].append(found)
    return [steps[number] for number in sorted(steps)]


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
