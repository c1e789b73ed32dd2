"""What a caller may ask for: the validation of a replay's start and of a patch (spec 05).

Owns the keys, ranges and defaults; never looks at the store. A body is flat, as the API takes it:
`{"kind": "dlq", "source_id": "acme.orders", "rate": 500}`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from msgspec import Struct

from ankusa.replay.answers import Invalid
from schemas.records import ErrorClass, JobState

DEFAULT_RATE = 1_000
DEFAULT_MAX_LAG_MS = 2_000
MAX_TENANTS = 1_000
"""Names in one filter; a filter is stored with its job and written with each of its pages."""

MAX_TIME = 1 << 53
"""Unix ms past every real one, and exact in every JSON reader."""

NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
SOURCE_ID = re.compile(r"[A-Za-z0-9_-]{1,64}(?:\.[A-Za-z0-9_-]{1,64})?")
UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")

UNBUILT_KINDS = frozenset({"archive", "quarantine", "lifecycle"})
COMMON_KEYS = frozenset({"kind", "rate", "max_lag_ms", "job_id", "dry_run"})


class StartSpec(Struct, frozen=True):
    """A validated start. `filter` has the keys that were given, spelled as the API spells them."""

    kind: str
    filter: dict[str, Any]
    rate: int
    max_lag_ms: int
    job_id: str | None
    dry_run: bool


class PatchSpec(Struct, frozen=True):
    """A validated patch; None is unchanged."""

    state: JobState | None
    rate: int | None
    max_lag_ms: int | None


class _RefusedError(ValueError):
    """A value's check failed; its text is the message."""


def _text(pattern: re.Pattern[str], what: str) -> Callable[[Any], str]:
    def check(value: Any) -> str:
        if not isinstance(value, str) or not pattern.fullmatch(value):
            raise _RefusedError(f"must be {what}")
        return value

    return check


def _integer(low: int, high: int, what: str) -> Callable[[Any], int]:
    def check(value: Any) -> int:
        # A JSON true is no number, though Python's bool is an int.
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise _RefusedError(f"must be {what} from {low} to {high}")
        return value

    return check


def _choice(*names: str) -> Callable[[Any], str]:
    def check(value: Any) -> str:
        if not isinstance(value, str) or value not in names:
            raise _RefusedError(f"must be one of {', '.join(names)}")
        return value

    return check


def _boolean(value: Any) -> bool:
    if not isinstance(value, bool):
        raise _RefusedError("must be true or false")
    return value


def _tenants(value: Any) -> list[str]:
    """Sorted and without repeats, so that equal filters compare equal."""
    if not isinstance(value, list | tuple) or not 1 <= len(value) <= MAX_TENANTS:
        raise _RefusedError(f"must be a list of 1 to {MAX_TENANTS} tenants")
    if not all(isinstance(name, str) and NAME.fullmatch(name) for name in value):
        raise _RefusedError("must name tenants, each 1 to 64 of A-Z a-z 0-9 _ -")
    return sorted(set(value))


Checks = Mapping[str, Callable[[Any], Any]]

_COMMON: Checks = {
    "rate": _integer(1, 100_000, "a whole number of items per second"),
    "max_lag_ms": _integer(100, 600_000, "a whole number of milliseconds"),
    "job_id": _text(UUID, "a lower-case UUID"),
    "dry_run": _boolean,
}
_TIME = _integer(0, MAX_TIME, "a unix time in milliseconds")
_FILTERS: Mapping[str, Checks] = {
    "dlq": {
        "source_id": _text(SOURCE_ID, "a source id: `name` or `tenant.name`"),
        "id": _text(UUID, "a hook id: a lower-case UUID"),
        "since": _TIME,
        "until": _TIME,
        "sink": _integer(0, 65_535, "the index of a sink"),
        "error_class": _choice(*(member.name.lower() for member in ErrorClass)),
        "tenants": _tenants,
    },
}
_PATCH: Checks = {
    "state": _choice("running", "paused", "cancelled"),
    "rate": _COMMON["rate"],
    "max_lag_ms": _COMMON["max_lag_ms"],
}


def _checked(body: Mapping[str, Any], checks: Checks) -> dict[str, Any] | Invalid:
    found: dict[str, Any] = {}
    for key, check in checks.items():
        if key in body:
            try:
                found[key] = check(body[key])
            except _RefusedError as refused:
                return Invalid(key, str(refused))
    return found


def parse_start(body: object) -> StartSpec | Invalid:
    """A start from a JSON object, or what is wrong with it. `Invalid.field` is `body` when it is not one."""
    if not isinstance(body, Mapping):
        return Invalid("body", "must be a JSON object")
    kind = body.get("kind")
    if isinstance(kind, str) and kind in UNBUILT_KINDS:
        return Invalid("kind", f"replays of kind {kind} are not built yet; this release replays kind dlq")
    if not isinstance(kind, str) or kind not in _FILTERS:
        return Invalid("kind", "must be one of dlq, archive, quarantine, lifecycle")
    filters = _FILTERS[kind]
    for key in body:
        if key not in COMMON_KEYS and key not in filters:
            return Invalid(str(key), f"is not a key of a replay of kind {kind}; its filters are {', '.join(filters)}")
    common, chosen = _checked(body, _COMMON), _checked(body, filters)
    if isinstance(common, Invalid):
        return common
    if isinstance(chosen, Invalid):
        return chosen
    if "since" in chosen and "until" in chosen and chosen["since"] > chosen["until"]:
        return Invalid("until", "must not be before since")
    return StartSpec(
        kind,
        chosen,
        common.get("rate", DEFAULT_RATE),
        common.get("max_lag_ms", DEFAULT_MAX_LAG_MS),
        common.get("job_id"),
        common.get("dry_run", False),
    )


def parse_patch(body: object) -> PatchSpec | Invalid:
    """A patch from a JSON object, or what is wrong with it. An empty one asks for nothing and is refused."""
    if not isinstance(body, Mapping):
        return Invalid("body", "must be a JSON object")
    for key in body:
        if key not in _PATCH:
            return Invalid(str(key), "cannot be changed; a patch takes state, rate and max_lag_ms")
    if not body:
        return Invalid("body", "must give state, rate or max_lag_ms")
    found = _checked(body, _PATCH)
    if isinstance(found, Invalid):
        return found
    state = found.get("state")
    return PatchSpec(None if state is None else JobState[state.upper()], found.get("rate"), found.get("max_lag_ms"))
