"""Reading one YAML file into plain mappings, lists and scalars.

Owns the limits on what is read: size, depth, how far aliases may expand it, the YAML types that are understood,
keys given twice. It knows no key of the configuration, and no message it makes quotes the file: a quoted line
could hold a secret.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from ankusa.config.problems import FILE, Problems, at_index, join

# A source is about 300 bytes of YAML: room for ten thousand of them, and a bound on what a wrong path costs.
MAX_FILE_BYTES = 4 * 1024 * 1024
# Nodes once aliases are expanded. Ten thousand sources have about 300,000.
MAX_NODES = 500_000
# Levels once aliases are expanded. The configuration itself has eight.
MAX_DEPTH = 32

_TAG = "tag:yaml.org,2002:"
_TEXT, _MERGE = f"{_TAG}str", f"{_TAG}merge"
_SCALARS = frozenset(_TAG + name for name in ("str", "int", "float", "bool", "null"))
# What a parser's message quotes from the file, as opposed to a character or a token such as '<stream end>'.
_QUOTED = re.compile(r"'[^']*'|\"[^\"]*\"")


class _Loader(yaml.SafeLoader):
    """SafeLoader without dates: what looks like one stays text."""

    yaml_implicit_resolvers = {
        first: [(tag, pattern) for tag, pattern in resolvers if tag != f"{_TAG}timestamp"]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }


def read(path: str, problems: Problems) -> dict[str, Any]:
    """The document of the file at `path`; {} for an empty file, and {} with the reason noted where there is none."""
    text = _text(path, problems)
    try:
        loader = _Loader(text)
        try:
            root = loader.get_single_node()
            if root is None or not _sound(root, problems):
                return {}
            document: dict[str, Any] = loader.construct_document(root)
            return document
        finally:
            loader.dispose()
    except RecursionError:
        problems.add(FILE, f"is nested more than {MAX_DEPTH} levels deep")
    except yaml.YAMLError as error:
        problems.add(FILE, _explain(error))
    except (ValueError, OverflowError):
        problems.add(FILE, "holds a number that cannot be read; text that looks like a number needs quotes")
    return {}


def _text(path: str, problems: Problems) -> str:
    try:
        with Path(path).open("rb") as file:
            raw = file.read(MAX_FILE_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "the name is not one of a file"
        problems.add(FILE, f"{path!r} cannot be read: {reason}")
        return ""
    if len(raw) > MAX_FILE_BYTES:
        problems.add(FILE, f"is larger than {MAX_FILE_BYTES} bytes")
        return ""
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        problems.add(FILE, f"is not UTF-8 (line {line})")
        return ""


def _explain(error: yaml.YAMLError) -> str:
    """A parser's error without what it quotes from the file."""
    if not isinstance(error, yaml.MarkedYAMLError):
        return "holds a control character, which YAML does not allow"
    mark = error.problem_mark or error.context_mark
    place = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
    text = ", ".join(part for part in (error.context, error.problem) if part)
    hint = "; indent with spaces" if "'\\t'" in text else ""
    return f"is not YAML: {place}{_QUOTED.sub(_shown, text)}{hint}"


def _shown(quoted: re.Match[str]) -> str:
    """A character or two, or a name of the parser's such as `<stream end>`, is no secret."""
    text = quoted[0]
    return text if len(text) < 5 or text[1] == "<" else "(not shown)"


class _Extent(NamedTuple):
    """How much a node is once aliases are expanded."""

    nodes: int
    depth: int


def _sound(root: yaml.Node, problems: Problems) -> bool:
    """Check a composed tree before anything is built from it."""
    if not isinstance(root, yaml.MappingNode):
        problems.add(FILE, "must be a mapping of sections at its top")
        return False
    extent = _Walk(problems).extent(root, "")
    if extent.nodes > MAX_NODES:
        problems.add(FILE, f"is more than {MAX_NODES} values once its aliases are expanded")
    if extent.depth > MAX_DEPTH:
        problems.add(FILE, f"is nested more than {MAX_DEPTH} levels deep")
    return not problems


class _Walk:
    """One pass over a composed tree. An anchored node is measured once, however often it is used."""

    def __init__(self, problems: Problems) -> None:
        self._problems = problems
        self._known: dict[yaml.Node, _Extent | None] = {}  # None: still inside it

    def extent(self, node: yaml.Node, path: str) -> _Extent:
        if node in self._known:
            known = self._known[node]
            if known is None:
                self._problems.add(path or FILE, f"{_line(node)}: is an alias of something that contains it")
            return known or _Extent(1, 1)
        self._known[node] = None
        parts = self._inside(node, path)
        self._known[node] = extent = _Extent(
            1 + sum(part.nodes for part in parts), 1 + max((part.depth for part in parts), default=0)
        )
        return extent

    def _inside(self, node: yaml.Node, path: str) -> list[_Extent]:
        if isinstance(node, yaml.MappingNode) and node.tag == f"{_TAG}map":
            self._check_keys(node, path)
            return [self.extent(value, join(path, _name(key))) for key, value in node.value]
        if isinstance(node, yaml.SequenceNode) and node.tag == f"{_TAG}seq":
            return [self.extent(value, at_index(path, index)) for index, value in enumerate(node.value)]
        if isinstance(node, yaml.ScalarNode) and not is_text(node.value):
            self._problems.add(path, f"{_line(node)}: holds half a character (a lone surrogate)")
        elif node.tag not in _SCALARS:
            self._problems.add(path, f"{_line(node)}: is of a YAML type that is not understood here")
        return []

    def _check_keys(self, node: yaml.MappingNode, path: str) -> None:
        first: dict[str, yaml.Node] = {}
        for key, _value in node.value:
            name = _name(key)
            if key.tag not in (_TEXT, _MERGE) or not is_text(name):
                self._problems.add(join(path, name), f"{_line(key)}: a key must be text: put it in quotes")
            elif name in first:
                lines = f"lines {first[name].start_mark.line + 1} and {key.start_mark.line + 1}"
                self._problems.add(join(path, name), f"is given twice, in {lines}")
            first.setdefault(name, key)


def is_text(value: str) -> bool:
    """False for what no UTF-8 can hold: an escape such as "\\ud800" makes it."""
    return not any(0xD800 <= ord(char) < 0xE000 for char in value)


def _name(key: yaml.Node) -> str:
    return key.value if isinstance(key, yaml.ScalarNode) and is_text(key.value) else "?"


def _line(node: yaml.Node) -> str:
    return f"line {node.start_mark.line + 1}"
