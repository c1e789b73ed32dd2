"""Reading the options of a queue sink: one key at a time, each checked, each fault an OptionError with its field.

Owns what the queue sinks' option modules share. No message quotes a value: URLs and passwords are among them. A number
or a flag may be written as text, for that is what `${VAR}` gives.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, Self
from urllib.parse import urlsplit

from ankusa.sinks.contract import OptionError

INLINE_MAX_BYTES = 65_536
IDLE_TIMEOUT_MS = 600_000
DAY_MS = 86_400_000
MAX_TIMEOUT_MS = 3_600_000  # as the widest `dispatch.attempt_timeout_ms`
# A body is at most 64,000,000 bytes (`http.max_body_bytes`); base64 makes 85 million of it, headers a little more.
MAX_MESSAGE_BYTES = 100_000_000

_DIGITS = re.compile(r"[0-9]{1,18}")
_CONTROL = re.compile("[\x00-\x1f\x7f\ud800-\udfff]")
_ADDRESS = re.compile(r"(?:[A-Za-z0-9_](?:[A-Za-z0-9_.-]{0,252})|\[[0-9A-Fa-f:.]{2,45}\]):([0-9]{1,5})")


class Options:
    """The options of one sink entry, or of a section in them (`prefix` such as "sasl.")."""

    def __init__(self, type_: str, values: Mapping[str, Any], known: Iterable[str], prefix: str = "") -> None:
        """OptionError for a key that is not among `known`."""
        self._type, self._values, self._prefix = type_, values, prefix
        names = set(known)
        for name in values:
            if name not in names:
                raise self.error(str(name), f"unknown option of a sink of type {type_}")

    def error(self, name: str, message: str) -> OptionError:
        return OptionError(self._prefix + name, message)

    def has(self, name: str) -> bool:
        return self._values.get(name) is not None

    def text(self, name: str, *, min_chars: int = 1, max_chars: int = 4096) -> str:
        """A required text, without control characters."""
        value = self._values.get(name)
        if value is None:
            raise self.error(name, "is required")
        if not isinstance(value, str) or not min_chars <= len(value) <= max_chars or _CONTROL.search(value):
            wanted = f"a text of {min_chars} to {max_chars} characters, without control characters"
            raise self.error(name, f"must be {wanted}")
        return value

    def optional_text(self, name: str, *, max_chars: int = 4096) -> str | None:
        return self.text(name, max_chars=max_chars) if self.has(name) else None

    def integer(self, name: str, default: int, low: int, high: int) -> int:
        value = self._values.get(name, default)
        if isinstance(value, str) and _DIGITS.fullmatch(value):
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise self.error(name, f"must be a whole number from {low} to {high}")
        return value

    def flag(self, name: str, default: bool = False) -> bool:
        value = self._values.get(name, default)
        if value in ("true", "false"):
            return bool(value == "true")
        if not isinstance(value, bool):
            raise self.error(name, "must be true or false")
        return value

    def choice(self, name: str, choices: Iterable[str], default: str | None = None) -> str:
        """One of `choices`; required without a default."""
        value = self._values.get(name, default)
        if not isinstance(value, str) or value not in (found := list(choices)):
            raise self.error(name, f"must be one of {', '.join(choices)}")
        return found[found.index(value)]

    def section(self, name: str, known: Iterable[str]) -> Self | None:
        """A mapping of options of its own; None when it is absent."""
        value = self._values.get(name)
        if value is None:
            return None
        if not isinstance(value, Mapping):
            raise self.error(name, "must be a section of options")
        return type(self)(self._type, value, known, f"{self._prefix}{name}.")

    def addresses(self, name: str) -> tuple[str, ...]:
        """One or more `host:port`, as a list or as one text with commas."""
        value = self._values.get(name)
        if value is None:
            raise self.error(name, "is required: a list of host:port")
        entries = value if isinstance(value, list | tuple) else [value]
        if not entries or not all(isinstance(entry, str) for entry in entries):
            raise self.error(name, "must be a list of host:port, or one text with commas")
        found = [part.strip() for entry in entries for part in entry.split(",")]
        for address in found:
            match = _ADDRESS.fullmatch(address)
            if match is None or not 1 <= int(match[1]) <= 65_535:
                raise self.error(name, "every entry must be host:port, without a scheme or a user")
        return tuple(dict.fromkeys(found))

    def url(self, name: str, schemes: tuple[str, ...]) -> str:
        """A URL with a host and one of `schemes`. Errors never quote it: it may hold a password."""
        wanted = " or ".join(f"{scheme}://" for scheme in schemes)
        value = self.text(name)
        try:
            parts = urlsplit(value)
            sound = parts.scheme in schemes and bool(parts.hostname) and (parts.port is None or parts.port > 0)
        except ValueError:
            sound = False
        if not sound or re.search(r"\s", value):
            raise self.error(name, f"must be a URL that starts with {wanted} and names a host")
        return value

    def inline_max_bytes(self) -> int:
        """The largest body that goes in the message itself; a larger one is claim-checked."""
        return self.integer("inline_max_bytes", INLINE_MAX_BYTES, 1, MAX_MESSAGE_BYTES)

    def idle_timeout_ms(self) -> int:
        """How long a connection without deliveries stays open; 0 is for good."""
        return self.integer("idle_timeout_ms", IDLE_TIMEOUT_MS, 0, DAY_MS)
