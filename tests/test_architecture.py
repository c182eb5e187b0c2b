"""Rules of the tree that no single module can keep: who imports whom, how long functions are, which words are used."""

from __future__ import annotations

import ast
import re
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

import pytest

from oasis_stack.command_line.stack_file import ROOT

PACKAGES = ("oasis_stack", "workloads", "emulator")
FUNCTION_LINES, CONSTRUCTOR_LINES = 50, 65
SIBLINGS = 15
MORE_SIBLINGS = {"oasis_stack/components": 20}
"""One component a file, side by side as in the wiring diagram."""


ORDER = {
    "oasis_stack": """
        facts settings live_state wait pod_specs ray_namespace components stack_outputs command_line preflight forecast
        __main__
    """,
    "workloads": """
        errors environment run_name closed_pipe emulated interruption tables storage reporting cluster command_parser
        __main__ dry_run checkpoints jobs runs doctor idle
        convnext convnext.images convnext.kernels convnext.learning
        nccl.definitions nccl.logs nccl.results nccl.ranks nccl.scaling nccl
        convnext.run tune
    """,
    "emulator": """
        closed_pipe machine protocol programs kubernetes google google.apis.compute_engine google.apis.kubernetes_engine
        google.apis gcp.resources gcp rest gke ray engine build lifecycle demo __main__
    """,
}
"""Folders, and the modules beside them in a package, from the ground up: each imports those before it alone."""

WITHOUT_RAY = """
    errors environment run_name dry_run storage reporting checkpoints runs convnext convnext.images convnext.kernels
    convnext.learning
    nccl.definitions nccl.logs nccl.results nccl.scaling
"""
"""Parts of the workloads that can be read, run and tested without Ray."""

RAY = (
    *("oasis_stack.components.team", "oasis_stack.pod_specs.mounts", "oasis_stack.pod_specs.pods"),
    *("oasis_stack.pod_specs.ray_cluster_spec", "oasis_stack.ray_namespace"),
)

READS_SETTINGS = ("settings", "__main__", "stack_outputs", "command_line", "preflight", "forecast")


@dataclass(frozen=True)
class Module:
    """One source file, parsed."""

    name: str
    path: Path
    text: str
    tree: ast.Module

    @cached_property
    def nodes(self) -> list[ast.AST]:
        return list(ast.walk(self.tree))

    @cached_property
    def imports(self) -> set[str]:
        """Every module it may import: `a.b` for `import a.b`, and both `a` and `a.b` for `from a import b`."""
        found: set[str] = set()
        for node in self.nodes:
            if isinstance(node, ast.Import):
                found |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                assert node.level == 0, f"{self.path}: relative import"
                found |= {node.module or "", *(f"{node.module}.{alias.name}" for alias in node.names)}
        return found

    def imported_roots(self) -> set[str]:
        return {name.partition(".")[0] for name in self.imports}

    def functions(self) -> Iterator[tuple[str, int]]:
        for node in self.nodes:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                yield node.name, (node.end_lineno or node.lineno) - node.lineno + 1

    def classes(self) -> list[ast.ClassDef]:
        return [node for node in self.tree.body if isinstance(node, ast.ClassDef)]


@cache
def modules() -> dict[str, Module]:
    """Every module of the three packages and of the policies, and the wiring diagram as `__main__`."""
    apart = [ROOT / "__main__.py", *(ROOT / "policies").glob("*.py")]
    paths = [*apart, *(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))]
    found = {}
    for path in sorted(paths):
        name = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        text = path.read_text(encoding="utf-8")
        found[name] = Module(name=name, path=path, text=text, tree=ast.parse(text))
    return found


def within(package: str) -> dict[str, Module]:
    return {name: found for name, found in modules().items() if name.partition(".")[0] == package}


def components() -> dict[str, Module]:
    """Modules of oasis_stack that define a component."""
    return {
        name: found
        for name, found in within("oasis_stack").items()
        if any("ComponentResource" in ast.unparse(base) for node in found.classes() for base in node.bases)
    }


def ours(found: Module) -> set[str]:
    return {name for name in found.imports if name in modules()}


def part(name: str) -> str:
    """Where a module stands in `ORDER`: its folder, or its own name if that folder is the package."""
    path = modules()[name].path.relative_to(ROOT).with_suffix("").parts[1:]
    return ".".join(path[:-1] or path)


def test_the_rules_look_at_something() -> None:
    assert len(components()) >= 14
    assert all(len(within(package)) > 10 for package in PACKAGES)


@pytest.mark.parametrize("package", PACKAGES)
def test_folders_are_imported_in_one_direction(package: str) -> None:
    order = ORDER[package].split()
    names = [name for name in within(package) if name != package]
    assert {part(name) for name in names} == set(order)
    upwards = {
        f"{name} imports {other}"
        for name in names
        for other in ours(modules()[name]) - {package}
        if other.partition(".")[0] == package and order.index(part(other)) > order.index(part(name))
    }
    assert upwards == set()


def test_no_folder_is_a_heap() -> None:
    modules_of = Counter(
        path.parent.relative_to(ROOT).as_posix()
        for path in sources()
        if path.suffix == ".py" and path.name != "__init__.py" and path.parent != ROOT / "tests" / "support"
    )
    assert {name: count for name, count in modules_of.items() if count > MORE_SIBLINGS.get(name, SIBLINGS)} == {}


def test_the_contract_the_hardware_facts_and_the_policies_rules_need_only_the_standard_library() -> None:
    for name in ("workloads.environment", "oasis_stack.facts.machine", "policies.rules"):
        assert modules()[name].imported_roots() <= sys.stdlib_module_names, name


def test_a_component_imports_no_other_component() -> None:
    for name, found in components().items():
        assert ours(found) & set(components()) - {name} == set(), name


def test_what_a_component_uses_imports_no_component_either() -> None:
    used = {other for found in components().values() for other in ours(found) if other.startswith("oasis_stack.")}
    for name in used - {"oasis_stack.components"}:
        assert ours(modules()[name]) & set(components()) == set(), name


def test_settings_are_read_by_the_wiring_and_the_command_line_alone() -> None:
    for name, found in within("oasis_stack").items():
        if any(other.startswith("oasis_stack.settings") for other in ours(found)):
            assert part(name) in READS_SETTINGS, name


def test_settings_need_no_cloud_provider() -> None:
    for name, found in within("oasis_stack").items():
        if name != "oasis_stack" and part(name) in ("facts", "settings"):
            assert found.imported_roots() & {"pulumi_gcp", "pulumi_kubernetes", "kubernetes"} == set(), name


def test_only_ray_s_pods_know_the_workloads_and_only_their_contract() -> None:
    for name, found in within("oasis_stack").items():
        theirs = {other for other in ours(found) if other.startswith("workloads")} - {"workloads"}
        assert theirs <= ({"workloads.environment"} if name in RAY else set()), name


@pytest.mark.parametrize(
    ("package", "never"),
    [
        ("oasis_stack", {"emulator", "policies"}),
        ("workloads", {"pulumi", "pulumi_gcp", "pulumi_kubernetes", "oasis_stack", "emulator", "policies"}),
        ("emulator", {"oasis_stack", "workloads", "policies"}),
        ("policies", set(PACKAGES)),
    ],
)
def test_packages_keep_apart(package: str, never: set[str]) -> None:
    for name, found in within(package).items():
        assert found.imported_roots() & never == set(), name


def test_what_needs_no_ray_imports_none() -> None:
    for name, found in within("workloads").items():
        if name != "workloads" and part(name) in WITHOUT_RAY.split():
            assert "ray" not in found.imported_roots(), name


def test_no_import_goes_round_in_a_circle() -> None:
    done: set[str] = set()

    def visit(name: str, path: tuple[str, ...]) -> None:
        assert name not in path, " -> ".join((*path, name))
        if name not in done:
            # What stands inside a function or under TYPE_CHECKING is not imported when the module is.
            found = modules()[name]
            top = [node for node in found.tree.body if isinstance(node, ast.Import | ast.ImportFrom)]
            imported = ours(Module(found.name, found.path, found.text, ast.Module(list(top), [])))
            for other in imported:
                if not name.startswith(f"{other}."):  # a folder that a module lies in was imported before it
                    visit(other, (*path, name))
            done.add(name)

    for name in modules():
        visit(name, ())


def test_the_wiring_diagram_only_declares() -> None:
    diagram = modules()["__main__"]
    assert not [node for node in diagram.nodes if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.While | ast.If)]


def test_functions_stay_small() -> None:
    long = {
        f"{name}.{function}": size
        for name, found in modules().items()
        for function, size in found.functions()
        # A component's methods are its constructor in parts: one call with many arguments each.
        if size > (CONSTRUCTOR_LINES if function == "__init__" or name in components() else FUNCTION_LINES)
    }
    assert long == {}


def test_every_module_says_what_it_owns() -> None:
    assert [name for name, found in modules().items() if found.tree.body and not ast.get_docstring(found.tree)] == []


def test_no_module_is_named_for_nothing() -> None:
    empty = {"utils", "util", "helpers", "helper", "common", "base", "misc", "lib"}
    assert [name for name in modules() if empty & set(name.split("."))] == []


def test_arguments_of_components_have_no_defaults_and_say_what_they_mean() -> None:
    for name, found in components().items():
        for node in found.classes():
            if not node.name.endswith("Args"):
                continue
            assert ast.unparse(node.decorator_list[0]) == "dataclass(frozen=True, kw_only=True)", f"{name}.{node.name}"
            for field, follower in zip(node.body, [*node.body[1:], None], strict=True):
                if isinstance(field, ast.AnnAssign):
                    said = isinstance(follower, ast.Expr) and isinstance(follower.value, ast.Constant)
                    assert field.value is None and said, f"{name}.{node.name}.{ast.unparse(field.target)}"


def test_components_take_name_arguments_and_options() -> None:
    for name, found in components().items():
        for node in found.classes():
            if any("ComponentResource" in ast.unparse(base) for base in node.bases):
                constructor = next(part for part in node.body if getattr(part, "name", "") == "__init__")
                assert isinstance(constructor, ast.FunctionDef)
                arguments = [argument.arg for argument in constructor.args.args]
                assert arguments == ["self", "name", "args", "opts"], name
                assert f"'oasis:index:{node.name}'" in ast.unparse(constructor), name
                assert "register_outputs" in ast.unparse(constructor.body[-1]), name


def test_nothing_is_called_through_a_shell() -> None:
    for name, found in modules().items():
        for node in found.nodes:
            if isinstance(node, ast.Call):
                assert not any(
                    keyword.arg == "shell" and not (isinstance(keyword.value, ast.Constant) and not keyword.value.value)
                    for keyword in node.keywords
                ), name
                assert ast.unparse(node.func) not in ("os.system", "os.popen", "subprocess.getoutput"), name


# Written in two parts, so that this file does not find itself.
SUPPRESSIONS = (
    "type: " + "ignore",
    "no" + "qa",
    "pyright: " + "ignore",
    "pragma: no " + "cover",
    "TO" + "DO",
    "FIX" + "ME",
)
FORMATTER_OFF = "# f" + "mt: "
UNFORMATTED = {
    "tests/workloads/test_tune.py": 2,
    "workloads/nccl/logs/faults.py": 2,
    "workloads/nccl/results/thresholds.py": 1,
}
"""Where the formatter may be off, and how often: tables whose rows are read side by side."""

# But for what the autoscaler itself says of a pool: "max node group size reached".
WRONG_WORDS = r"\b((?<!max )node ?groups?|Infini" + r"Band|C" + r"CC|D" + r"WS)\b"

IN_GOOGLES_CATALOGUE = {
    f"{path}: D{'WS'}"
    for path in ("oasis_stack/command_line/price_catalogue.py", "tests/oasis_stack/test_price_catalogue.py")
}
"""Words that must be written as somebody else has them to be found."""


def sources() -> list[Path]:
    code = [path for folder in ("tests", "benchmarks", "docs") for path in (ROOT / folder).rglob("*.py")]
    texts = [
        ROOT / "Makefile",
        *(path for kind in ("*.md", "docs/*.md", "*.yaml", "*.toml") for path in ROOT.glob(kind)),
    ]
    return [found.path for found in modules().values()] + sorted(code) + sorted(texts)


def test_nothing_is_suppressed_and_nothing_is_left_to_do() -> None:
    found = [
        f"{path.relative_to(ROOT)}: {word}"
        for path in sources()
        for word in SUPPRESSIONS
        if word in path.read_text(encoding="utf-8")
    ]
    assert found == []


def test_the_formatter_is_off_for_a_few_tables_alone() -> None:
    counted = {str(path.relative_to(ROOT)): path.read_text(encoding="utf-8").count(FORMATTER_OFF) for path in sources()}
    assert {name: count for name, count in counted.items() if count} == UNFORMATTED


def test_no_path_of_a_machine_stands_in_the_source() -> None:
    places = re.compile("/wo" + r"rk/(main|shared)|/ho" + r"me/(?!kubernetes/)\w+/|/ro" + "ot/")
    assert [str(path) for path in sources() if places.search(path.read_text(encoding="utf-8"))] == []


def test_the_fields_words_are_used() -> None:
    wrong = re.compile(WRONG_WORDS)
    found = {
        f"{path.relative_to(ROOT)}: {match[0]}"
        for path in sources()
        for match in wrong.finditer(path.read_text(encoding="utf-8"))
    }
    assert found == IN_GOOGLES_CATALOGUE
