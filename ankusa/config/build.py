"""Making the frozen structs of `schemas/config.py` from plain mappings, with every fault noted and not only the first.

Owns the walk along the structs' own types and the wording of a wrong value. Types, ranges and defaults are the
structs'; no message repeats a value, for the value could be a secret.
"""

from __future__ import annotations

import difflib
import functools
import re
import types
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Final, Literal, NamedTuple, TypeVar, Union, get_args, get_origin

import msgspec
from msgspec import NODEFAULT, Struct

from ankusa.config.problems import Problems, at_index, join

S = TypeVar("S", bound=Struct)


class _Bad:
    """Stands where a value could not be built; the reason is noted."""


BAD: Final = _Bad()

_WORDS = {
    "int": "a whole number",
    "float": "a number",
    "str": "text",
    "bool": "true or false",
    "array": "a list",
    "object": "a mapping",
    "null": "nothing",
    "bytes": "binary",
}
_PLACE = re.compile(r"^(?P<what>.*?)(?: - at `\$(?P<index>(?:\[\d+\])*)`)?$", re.DOTALL)


class Part(NamedTuple):
    """A struct that was built, and where it stands. Keys of it that are at fault have their defaults: what is noted
    under `path` tells which."""

    path: str
    value: Struct


def build(struct: type[S], raw: Any, path: str, problems: Problems, parts: list[Part] | None = None) -> S | None:
    """`raw` as a `struct`, or None with all that is wrong with it noted under `path`.

    `parts` is given every struct in it, innermost first, also those that are not sound but have all they require.
    """
    value = _Builder(problems, [] if parts is None else parts).struct(struct, raw, path)
    return value if isinstance(value, struct) else None


def unknown_key(key: str, known: Iterable[str]) -> str:
    """The message for a key that does not exist, with the one it may have been meant for."""
    close = difflib.get_close_matches(key, list(known), n=1)
    return f"is not a known key; did you mean `{close[0]}`?" if close else "is not a known key"


class _Builder:
    """The walk: one method a kind of type."""

    def __init__(self, problems: Problems, parts: list[Part]) -> None:
        self._problems = problems
        self._parts = parts

    def struct(self, struct: type[Struct], raw: Any, path: str) -> Any:
        raw = {} if raw is None else raw  # a section whose lines are all commented out
        if not isinstance(raw, Mapping):
            return self._bad(path, f"expected a mapping of keys, got {_kind(raw)}")
        fields = _fields(struct)
        unknown = [key for key in raw if key not in fields]
        for key in unknown:
            self._problems.add(join(path, key), unknown_key(key, fields))
        built: dict[str, Any] = {}
        for name, field in fields.items():
            if name in raw:
                built[name] = self._value(field.type, raw[name], join(path, name))
            elif _is_required(field):
                built[name] = self._bad(join(path, name), "is required")
        good = {name: value for name, value in built.items() if value is not BAD}
        if any(_is_required(fields[name]) for name in built.keys() - good.keys()):
            return BAD
        value = struct(**good)
        self._parts.append(Part(path, value))
        return BAD if unknown or len(good) < len(built) else value

    def _value(self, kind: Any, raw: Any, path: str) -> Any:
        inner = _plain(kind)
        if raw is None and type(None) in get_args(inner):
            return None
        for option in _options(inner):
            if isinstance(option, type) and issubclass(option, Struct):
                return self.struct(option, raw, path)
            if get_origin(option) is dict and get_args(option) != (str, Any):
                return self._mapping(option, raw, path)
            if get_origin(option) is tuple and _holds_structs(option):
                return self._list(option, raw, path)
            if get_origin(option) is tuple and isinstance(raw, list | tuple) and self._list(option, raw, path) is BAD:
                return BAD  # with each element that is
        return self._leaf(kind, raw, path)

    def _mapping(self, kind: Any, raw: Any, path: str) -> Any:
        raw = {} if raw is None else raw
        if not isinstance(raw, Mapping):
            return self._bad(path, f"expected a mapping of names, got {_kind(raw)}")
        name_kind, item_kind = get_args(kind)
        built = {
            self._leaf(name_kind, name, join(path, name)): self._value(item_kind, item, join(path, name))
            for name, item in raw.items()
        }
        return BAD if BAD in built or BAD in built.values() else built

    def _list(self, kind: Any, raw: Any, path: str) -> Any:
        if not isinstance(raw, list | tuple):
            return self._bad(path, f"expected a list, got {_kind(raw)}")
        item_kind = get_args(kind)[0]
        built = tuple(self._value(item_kind, item, at_index(path, index)) for index, item in enumerate(raw))
        return BAD if BAD in built else built

    def _leaf(self, kind: Any, raw: Any, path: str) -> Any:
        try:
            return msgspec.convert(raw, kind, strict=True)
        except msgspec.ValidationError:
            pass  # text that came from a variable is read as the field's type in the second try
        try:
            return msgspec.convert(raw, kind, strict=False)
        except msgspec.ValidationError as error:
            place = _PLACE.match(str(error))
            assert place is not None  # the expression matches every string
            return self._bad(path + (place["index"] or ""), _reworded(place["what"], kind))

    def _bad(self, path: str, message: str) -> _Bad:
        self._problems.add(path, message)
        return BAD


@functools.cache  # evaluating the annotations costs more than all the rest
def _fields(struct: type[Struct]) -> dict[str, msgspec.structs.FieldInfo]:
    return {field.encode_name: field for field in msgspec.structs.fields(struct)}


def _is_required(field: msgspec.structs.FieldInfo) -> bool:
    return field.default is NODEFAULT and field.default_factory is NODEFAULT


def _reworded(what: str, kind: Any) -> str:
    """A message of msgspec for people who have not seen the types, and without the value it may quote."""
    if what.startswith("Invalid enum value"):
        return f"must be one of {', '.join(_choices(kind))}"
    if "matching regex" in what:
        return f"must be {_described(kind) or 'text that matches ' + what.split('regex ', 1)[1]}"
    text = re.sub(r"`([a-z| ]+)`", lambda match: _in_words(match[1]), what)
    return text[0].lower() + text[1:]


def _described(kind: Any) -> str | None:
    """What the type says of its pattern, for an optional type too."""
    for part in get_args(kind):
        words = part.description if isinstance(part, msgspec.Meta) else _described(part)
        if words is not None:
            return words
    return None


def _in_words(names: str) -> str:
    return " or ".join(_WORDS.get(name, name) for name in names.split(" | ") if name != "null") or "nothing"


def _choices(kind: Any) -> list[str]:
    if get_origin(kind) is Literal:
        return [str(choice) for choice in get_args(kind)]
    return [choice for part in get_args(kind) for choice in _choices(part)]


def _plain(kind: Any) -> Any:
    return get_args(kind)[0] if get_origin(kind) is Annotated else kind


def _options(kind: Any) -> list[Any]:
    """The alternatives of an optional type, in order."""
    return [_plain(part) for part in get_args(kind)] if get_origin(kind) in (types.UnionType, Union) else [kind]


def _holds_structs(kind: Any) -> bool:
    item = _plain(get_args(kind)[0])
    return isinstance(item, type) and issubclass(item, Struct)


def _kind(raw: Any) -> str:
    names = {str: "text", bool: "true or false", int: "a number", float: "a number", dict: "a mapping"}
    return "nothing" if raw is None else names.get(type(raw), "a list")
