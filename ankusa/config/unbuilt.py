"""What the configuration language knows and this version does not do: the one list of it.

Building a feature removes its line here and gives its keys a place in `schemas/config.py`. A known key that is
not built is an error, never ignored; only a section that states it is off loads, for that is what it gets.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from msgspec import Struct

from ankusa.config.build import unknown_key
from ankusa.config.problems import Problems, at_index, join

MESSAGE = "known, but not built yet in this version"


class Unbuilt(Struct, frozen=True):
    """A key that is known. `pattern` is its path; `*` is any name and `[]` any element.

    `is_off` says for the value, and the mapping it stands in, that nothing is asked for; the key is then dropped.
    `keys`, where given, are the keys of the section: others in it are unknown.
    """

    pattern: str
    is_off: Callable[[Any, Mapping[str, Any]], bool]
    keys: tuple[str, ...] = ()


def _never(_value: Any, _around: Mapping[str, Any]) -> bool:
    return False


def _when(key: str, off: Any) -> Callable[[Any, Mapping[str, Any]], bool]:
    """Off if the section says so in `key`."""
    return lambda value, _around: isinstance(value, Mapping) and key in value and _same(value[key], off)


def _same(value: Any, off: Any) -> bool:
    return str(value).lower() == str(off).lower()  # a value from a variable is still text here


UNBUILT: tuple[Unbuilt, ...] = (
    Unbuilt("archive", _never),
    Unbuilt("lifecycle", _when("sinks", []), ("sinks", "retention_days")),
)


def settle(document: dict[str, Any], problems: Problems) -> None:
    """Take every unbuilt key out of `document`, noting those that ask for something."""
    found = [(entry, place) for entry in UNBUILT for place in _find(document, entry.pattern)]
    for entry, place in found:
        value = place.around[place.key]
        if entry.keys and isinstance(value, dict):
            for name in sorted(value.keys() - set(entry.keys)):
                problems.add(join(place.path, name), unknown_key(name, entry.keys))
        if not entry.is_off(value, place.around):
            problems.add(place.path, MESSAGE)
    for _entry, place in found:  # only now: a key may be off by what one beside it says
        del place.around[place.key]


class _Place(NamedTuple):
    """Where a key was found: `around[key]`."""

    around: Any
    key: Any
    path: str


def _find(document: dict[str, Any], pattern: str) -> Iterator[_Place]:
    steps = pattern.replace("[]", ".[]").split(".")
    places = [_Place({"": document}, "", "")]
    for step in steps:
        places = [inner for place in places for inner in _step(place, step)]
    return iter(places)


def _step(place: _Place, step: str) -> Iterator[_Place]:
    value = place.around[place.key]
    if step == "[]":
        for index in range(len(value) if isinstance(value, list) else 0):
            yield _Place(value, index, at_index(place.path, index))
    elif isinstance(value, dict):
        for key in list(value) if step == "*" else [step] if step in value else []:
            yield _Place(value, key, join(place.path, key))
