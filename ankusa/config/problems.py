"""What is wrong with a configuration: problems, each with its field, collected and raised together.

Owns the error type and the way a field is written (`sources.a.sinks[0].url`). It never decides what is wrong.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from msgspec import Struct

from ankusa.redact import redact_text

# The field of a fault of the file as a whole: missing, unreadable, not YAML.
FILE = "file"

# A secret of this length in a field is hidden there: no key is the same by chance.
_LONG = 8


class Problem(Struct, frozen=True):
    """One fault. `field` is a dotted path, an environment variable's name, or `file` for the file as a whole."""

    field: str
    message: str

    def __str__(self) -> str:
        return f"{self.field}: {self.message}"


class ConfigError(Exception):
    """The configuration cannot be used. `problems` is never empty and holds no secret's value."""

    def __init__(self, problems: Iterable[Problem], secrets: Iterable[str] = ()) -> None:
        hidden = tuple(secrets)
        long = tuple(secret for secret in hidden if len(secret) >= _LONG)
        self.problems = [
            Problem(redact_text(problem.field, long), redact_text(problem.message, hidden)) for problem in problems
        ]
        super().__init__("\n".join(str(problem) for problem in self.problems))


class Problems:
    """A collector, handed down through one load. Paths are of the document as it is built."""

    def __init__(self) -> None:
        self._found: dict[str, str] = {}

    def __bool__(self) -> bool:
        return bool(self._found)

    def add(self, field: str, message: str) -> None:
        """Note a fault. A second one of the same field tells a person nothing new to do and is dropped."""
        self._found.setdefault(field, message)

    def under(self, field: str) -> bool:
        """True if a fault was noted at `field` or inside it, so that a check which reads it has to wait."""
        return any(_inside(found, field) for found in self._found)

    def listed(self) -> list[Problem]:
        return [Problem(field, message) for field, message in self._found.items()]

    def raise_if_any(self, secrets: Iterable[str] = (), origins: Mapping[str, str] | None = None) -> None:
        """Raise `ConfigError` with all that was noted.

        `origins` maps a document path to the environment variable, or the older key, that it was written as.
        """
        if self._found:
            named = origins or {}
            raise ConfigError([Problem(_named(p.field, named), p.message) for p in self.listed()], secrets)


def join(path: str, key: str) -> str:
    """The path of `key` inside `path`; the top has the empty path."""
    return f"{path}.{key}" if path else key


def at_index(path: str, index: int) -> str:
    """The path of a list's element."""
    return f"{path}[{index}]"


def _named(path: str, origins: Mapping[str, str]) -> str:
    return next((name + path[len(outer) :] for outer, name in origins.items() if _inside(path, outer)), path)


def _inside(field: str, outer: str) -> bool:
    return field == outer or field.startswith((f"{outer}.", f"{outer}["))
