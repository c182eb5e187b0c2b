"""Reads a stack file as Pulumi does, and sets single values in it without touching comments, order or quotes.

An edit changes one line, and is checked by reading the result: if anything but the one value changed, nothing is
written.
"""

from __future__ import annotations

import copy
import functools
import json
import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parent.parent.parent
"""The checkout: where the stack files lie."""


class StackFileError(Exception):
    """A stack file that is missing, cannot be read, or cannot be edited safely."""


class _Loader(yaml.SafeLoader):
    """YAML's scalars as Pulumi reads them: `yes`, `no`, `on`, `off` are text, and a date without quotes is a time."""

    def moment(self, node: yaml.ScalarNode) -> str:
        """The text that Pulumi has: Go's time.String (pulumi/sdk, go/common/resource/config/object.go)."""
        try:
            read = self.construct_yaml_timestamp(node)
        except ValueError as error:
            problem = f"{node.value} is not a date: {error}. Correct it, or put it in quotes"
            raise yaml.constructor.ConstructorError(None, None, problem, node.start_mark) from None
        moment = read if isinstance(read, datetime) else datetime(read.year, read.month, read.day)
        offset = moment.strftime("%z") or "+0000"
        return f"{moment:%Y-%m-%d %H:%M:%S} {offset} {'UTC' if offset == '+0000' else offset}"


_BOOLEAN = "tag:yaml.org,2002:bool"
_Loader.yaml_implicit_resolvers = {
    first: [(tag, form) for tag, form in resolvers if tag != _BOOLEAN]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
# Pulumi's reader takes these alone (go-yaml/yaml v3, resolve.go).
_Loader.add_implicit_resolver(_BOOLEAN, re.compile("(true|True|TRUE|false|False|FALSE)$"), list("tTfF"))
_Loader.add_constructor("tag:yaml.org,2002:timestamp", _Loader.moment)


def find(stack: str, directory: Path = ROOT) -> Path:
    """The file of a stack.

    Raises:
        StackFileError: there is none.
    """
    path = directory / f"Pulumi.{stack}.yaml"
    if not re.fullmatch(r"[A-Za-z0-9_.-]{1,100}", stack):
        raise StackFileError(f"{stack!r} is not a stack name. Use 1 to 100 letters, digits, `_`, `.` and `-`.")
    if not path.is_file():
        known = sorted(file.name.split(".", 1)[1].removesuffix(".yaml") for file in directory.glob("Pulumi.*.yaml"))
        raise StackFileError(
            f"there is no stack file {path.name} in {directory}; stacks here: {', '.join(known) or 'none'}. "
            f"Copy Pulumi.dev.yaml to {path.name} and edit it, or name another stack with --stack."
        )
    return path


def config(path: Path) -> dict[str, object]:
    """The `config` section: namespaced keys to values.

    Raises:
        StackFileError: the file is no YAML mapping, or has settings beside the section, which Pulumi ignores, or in it
            without a namespace.
    """
    file = _load(_text(path), path.name)
    section = file.get("config") or {}
    if beside := [str(key) for key in file if ":" in str(key)]:
        raise StackFileError(
            f"{path.name}: {', '.join(beside)} is not below `config:`, the only place where Pulumi reads it. Indent "
            "it by two, with everything below it."
        )
    if not isinstance(section, dict):
        raise StackFileError(f"{path.name}: `config:` must be keys and values, indented. See Pulumi.dev.yaml.")
    # Pulumi takes these for the project's own (sdk/go/common/workspace/project_test.go,
    # TestStackConfigDoesNotErrorWhenProjectHasNotDefinedConfig); what is edited here would then stand in two places.
    if bare := [str(key) for key in section if ":" not in str(key)]:
        raise StackFileError(
            f"{path.name}: {', '.join(bare)} has no namespace; allowed: keys such as oasis:region and gcp:project. "
            f"Write oasis:{bare[0]}, or remove it."
        )
    return section


def encrypted_with_passphrase(path: Path) -> bool:
    """True if the stack's secrets are encrypted with a passphrase, which Pulumi then asks for.

    Raises:
        StackFileError: the file is no YAML mapping.
    """
    file = _load(_text(path), path.name)
    provider = str(file.get("secretsprovider") or ("passphrase" if file.get("encryptionsalt") else ""))
    return provider == "passphrase"


def set_value(path: Path, keys: Sequence[str], value: str) -> bool:
    """Set one text value, such as `("config", "oasis:ray", "image")`; False if it was already there.

    Raises:
        StackFileError: the file cannot be edited line by line, or not be written; it is left as it was.
    """
    text = _text(path)
    old = _load(text, path.name)
    new = _with(old, keys, value)
    if new == old:
        return False
    edited = _edit(text, keys, value)
    by_hand = f"Nothing was changed; set {' / '.join(keys)} to {value} by hand."
    if edited is None or not _reads_as(edited, new):
        raise StackFileError(
            f"{path.name} is written in a way that cannot be edited without changing more than one line. {by_hand}"
        )
    try:
        replace(path, edited)
    except OSError as error:
        raise StackFileError(f"{path.name} cannot be written: {error}. {by_hand}") from None
    return True


def fill(path: Path, keys: Sequence[str], value: str) -> bool:
    """Set one text value only if nothing stands there; False if something does."""
    here: object = _load(_text(path), path.name)
    for key in keys:
        here = here.get(key) if isinstance(here, Mapping) else None
    return False if here not in (None, "") else set_value(path, keys, value)


def _text(path: Path) -> str:
    try:
        return path.read_bytes().decode()
    except (OSError, UnicodeDecodeError) as error:
        raise StackFileError(
            f"{path.name} cannot be read: {error}. It must be readable by you, and in UTF-8."
        ) from None


def _load(text: str, name: str) -> dict[str, Any]:
    try:
        tree, twice = _composed(text)
        loaded = (_Loader("").construct_document(tree) if tree else None) or {}
    except yaml.YAMLError as error:
        where = str(error).replace('"<unicode string>"', name)
        raise StackFileError(f"{name} is not valid YAML, and nothing was done: {where}") from None
    if twice:
        lines = "; ".join(f"{key} stands on lines {first} and {second}" for key, first, second in twice)
        raise StackFileError(f"{name}: {lines}. A key may appear only once; remove one of the two lines.")
    if not isinstance(loaded, dict):
        raise StackFileError(f"{name} must be keys and values. See Pulumi.dev.yaml.")
    return loaded


@functools.lru_cache(maxsize=8)  # a command asks for the same file several times
def _composed(text: str) -> tuple[yaml.Node | None, list[tuple[str, int, int]]]:
    """The text's nodes, and its keys that stand twice: read before merges (`<<`) are resolved into the nodes."""
    tree = yaml.compose(text, Loader=_Loader)
    return tree, list(_twice(tree))


def _twice(node: yaml.Node | None, path: str = "") -> Iterator[tuple[str, int, int]]:
    """Duplicate keys of a mapping, with both lines. YAML forbids them, Pulumi refuses them, PyYAML takes the last."""
    if isinstance(node, yaml.SequenceNode):
        for index, item in enumerate(node.value):
            yield from _twice(item, f"{path}[{index}]")
    elif isinstance(node, yaml.MappingNode):
        lines: dict[str, int] = {}
        for key, value in node.value:
            name, line = str(key.value), key.start_mark.line + 1
            full = f"{path}.{name}" if path else name
            if name in lines:
                yield full.removeprefix("config."), lines[name], line
            lines.setdefault(name, line)
            yield from _twice(value, full)


def _reads_as(text: str, tree: dict[str, Any]) -> bool:
    try:
        return _load(text, "") == tree
    except StackFileError:
        return False


def _with(tree: dict[str, Any], keys: Sequence[str], value: str) -> dict[str, Any]:
    new = copy.deepcopy(tree)
    here = new
    for key in keys[:-1]:
        if not isinstance(here.get(key), dict):
            here[key] = {}
        here = here[key]
    here[keys[-1]] = value
    return new


def _edit(text: str, keys: Sequence[str], value: str) -> str | None:
    newline = "\r\n" if "\r\n" in text else "\n"
    lines = text.splitlines()
    start, end, indent = 0, len(lines), 0
    for depth, key in enumerate(keys):
        found = _line_of(lines, start, end, indent, key)
        if found is None:
            at = _after_content(lines, start, end)
            lines[at:at] = _new_lines(keys[depth:], value, indent)
            break
        if depth == len(keys) - 1:
            # What is replaced is a scalar on the key's own line; a comment behind it stays.
            match = re.fullmatch(
                r"""(\s*[^#\s][^#]*?:)(?:\s+("[^"]*"|'[^']*'|[^\s#"'|>{\[][^\s#]*))?(\s+#.*)?""", lines[found]
            )
            if match is None:
                return None
            lines[found] = f"{match[1]} {_scalar(value)}{match[3] or ''}"
            break
        lines[found] = re.sub(r":\s*(?:\{\s*\}|~|null)(\s+#.*)?$", r":\1", lines[found])
        start, end = found + 1, _end_of_block(lines, found + 1, end, indent)
        indent = _indent_of_block(lines, start, end, indent)
    return newline.join(lines) + newline


def _line_of(lines: list[str], start: int, end: int, indent: int, key: str) -> int | None:
    form = re.compile(rf"""\s{{{indent}}}(["']?){re.escape(key)}\1:(\s.*)?""")
    return next((index for index in range(start, end) if form.fullmatch(lines[index])), None)


def _is_content(line: str) -> bool:
    return bool(line.strip()) and not line.lstrip().startswith("#")


def _width(line: str) -> int:
    return len(line) - len(line.lstrip())


def _end_of_block(lines: list[str], start: int, end: int, indent: int) -> int:
    return next((i for i in range(start, end) if _is_content(lines[i]) and _width(lines[i]) <= indent), end)


def _indent_of_block(lines: list[str], start: int, end: int, indent: int) -> int:
    return next((_width(lines[index]) for index in range(start, end) if _is_content(lines[index])), indent + 2)


def _after_content(lines: list[str], start: int, end: int) -> int:
    return next((index + 1 for index in range(end - 1, start - 1, -1) if _is_content(lines[index])), start)


def _new_lines(keys: Sequence[str], value: str, indent: int) -> list[str]:
    parents = [f"{' ' * (indent + 2 * depth)}{key}:" for depth, key in enumerate(keys[:-1])]
    return [*parents, f"{' ' * (indent + 2 * len(parents))}{keys[-1]}: {_scalar(value)}"]


def _scalar(value: str) -> str:
    plain = (
        re.fullmatch(r"[A-Za-z][A-Za-z0-9_./@-]*(:[A-Za-z0-9_./@-]+)*", value) and yaml.load(value, _Loader) == value
    )
    return value if plain else json.dumps(value)


def replace(path: Path, text: str) -> None:
    """Replace the content of a file."""
    # Written beside and renamed: an interrupted write must not leave half of it.
    with tempfile.NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}.", delete=False) as new:
        beside = Path(new.name)
        try:
            new.write(text.encode())
            new.flush()
            beside.chmod(path.stat().st_mode & 0o777)
            beside.replace(path)
        except BaseException:
            beside.unlink(missing_ok=True)
            raise
