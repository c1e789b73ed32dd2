"""Routes, ip rules and dry runs as they are written: checked key by key, brought into their normal form (spec 07).

Owns what each key may be. Bodies are mappings as JSON gives them; a file's seeds go the same way. Messages quote no
value: metadata may be anybody's secret.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec
from msgspec import Struct

from ankusa.core.ip_rules import Address, address, normal_cidr
from ankusa.core.route import PatternError, normal_pattern
from ankusa.redact import redact_tree
from ankusa.routes.answers import Code, Invalid
from schemas.config import Routes, RouteSeed
from schemas.routes import IpRule, IpRules, Route

METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
MAX_RULES = 1000
"""In one list. Each request walks the global one to the first that holds its address: a fraction of a millisecond."""

MAX_METADATA_BYTES = 16 << 10

SLUG = re.compile(r"[a-z0-9](?:[a-z0-9_-]{0,62}[a-z0-9])?")
CHANGEABLE = ("enabled", "methods", "ip_rules", "metadata")
_KEYS = ("id", "path", *CHANGEABLE)


class InvalidError(Exception):
    """Carries the refusal out of a check."""

    def __init__(self, code: Code, field: str, message: str) -> None:
        super().__init__(f"{field}: {message}")
        self.refusal = Invalid(code, field, message)


class DryRun(Struct, frozen=True):
    method: str
    path: str
    ip: Address


def read_route(body: Mapping[str, Any], route_id: str, at: int, before: Route | None) -> Route:
    """A whole route. `route_id` names it; `before` is the one it replaces. Raises InvalidError."""
    _known(body, _KEYS, "invalid_route")
    if "path" not in body:
        raise InvalidError("invalid_route", "path", "is required")
    path = body["path"]
    if not isinstance(path, str):
        raise InvalidError("invalid_route", "path", "must be text")
    try:
        pattern = normal_pattern(path)
    except PatternError as error:
        raise InvalidError("invalid_route", "path", str(error)) from None
    return Route(
        route_id,
        pattern,
        _methods(body.get("methods", ["POST"])),
        _boolean(body.get("enabled", True)),
        read_rules(body.get("ip_rules", []), "ip_rules", "invalid_route"),
        _metadata(body.get("metadata", {})),
        before.inserted_at if before else at,
        at,
    )


def read_patch(body: Mapping[str, Any], before: Route, at: int) -> Route:
    """A route with some keys changed. Raises InvalidError."""
    for key in body:
        if key not in CHANGEABLE:
            raise InvalidError("invalid_route", key, f"cannot be changed: a change is of {', '.join(CHANGEABLE)}")
    return msgspec.structs.replace(
        before,
        methods=_methods(body["methods"]) if "methods" in body else before.methods,
        enabled=_boolean(body["enabled"]) if "enabled" in body else before.enabled,
        ip_rules=read_rules(body["ip_rules"], "ip_rules", "invalid_route") if "ip_rules" in body else before.ip_rules,
        metadata=_metadata(body["metadata"]) if "metadata" in body else before.metadata,
        updated_at=at,
    )


def read_id(body: Mapping[str, Any]) -> str | None:
    """The id that a new route asks for, None when it asks for none. Raises InvalidError."""
    route_id = body.get("id")
    return None if route_id is None else checked_id(route_id)


def checked_id(route_id: object) -> str:
    """Raises InvalidError for what is no slug."""
    if not isinstance(route_id, str) or not SLUG.fullmatch(route_id):
        raise InvalidError("invalid_route", "id", "must be 1 to 64 of a-z 0-9 _ -, with a letter or digit at both ends")
    return route_id


def seed_id(path: str, methods: Sequence[str]) -> str:
    """The id of a seed that names none: of what it matches, so that it is the same at each start."""
    return "seed-" + hashlib.sha256(f"{','.join(sorted(methods))} {path}".encode()).hexdigest()[:12]


def seeded(seed: RouteSeed, at: int) -> Route:
    """A file's seed as a route. Raises InvalidError on one that was not checked."""
    body = {key: value for key, value in msgspec.to_builtins(seed).items() if key != "id"}
    return read_route(body, checked_id(seed.id or seed_id(seed.path, seed.methods)), at, None)


def configured_rules(settings: Routes) -> IpRules:
    """The file's global rules. Raises InvalidError on what was not checked."""
    return read_ip_rules(msgspec.to_builtins(settings.ip_rules))


def shown(route: Route) -> dict[str, Any]:
    """A route as the API shows it: times in ISO 8601."""
    entity: dict[str, Any] = msgspec.to_builtins(route)
    return entity | {"inserted_at": _iso(route.inserted_at), "updated_at": _iso(route.updated_at)}


def audited(route: Route) -> dict[str, Any]:
    """The same for the audit trail: what somebody keeps in `metadata` may be a secret."""
    return shown(route) | {"metadata": redact_tree(route.metadata)}


def read_ip_rules(body: Mapping[str, Any]) -> IpRules:
    """The global rules, whole. Raises InvalidError."""
    _known(body, ("default", "rules"), "invalid_ip_rules")
    default = body.get("default", "allow")
    if default not in ("allow", "deny"):
        raise InvalidError("invalid_ip_rules", "default", "must be allow or deny")
    return IpRules(default, read_rules(body.get("rules", []), "rules", "invalid_ip_rules"))


def read_rules(raw: object, path: str, code: Code) -> tuple[IpRule, ...]:
    """A list of rules, each CIDR in its normal spelling. Raises InvalidError."""
    if not isinstance(raw, list | tuple):
        raise InvalidError(code, path, "must be a list of rules")
    if len(raw) > MAX_RULES:
        raise InvalidError(code, path, f"has more than {MAX_RULES} rules")
    return tuple(_rule(rule, f"{path}[{index}]", code) for index, rule in enumerate(raw))


def read_dry_run(body: Mapping[str, Any]) -> DryRun:
    """A request to be judged. Raises InvalidError."""
    _known(body, ("method", "path", "ip"), "invalid_request")
    method, path, ip = body.get("method", "POST"), body.get("path"), body.get("ip")
    if not isinstance(method, str) or method.upper() not in METHODS:
        raise InvalidError("invalid_request", "method", f"must be one of {', '.join(METHODS)}")
    if not isinstance(path, str) or not path.startswith("/"):
        raise InvalidError("invalid_request", "path", "must be a path that begins with a slash")
    found = address(ip) if isinstance(ip, str) else None
    if found is None:
        raise InvalidError("invalid_request", "ip", "must be an IP address")
    return DryRun(method.upper(), path.partition("?")[0], found)


def _rule(raw: object, path: str, code: Code) -> IpRule:
    if not isinstance(raw, Mapping):
        raise InvalidError(code, path, "must be {action, cidr}")
    for key in raw:
        if key not in ("action", "cidr"):
            raise InvalidError(code, f"{path}.{key}", "is not a key of a rule: give action and cidr")
    action, block = raw.get("action"), raw.get("cidr")
    if action != "allow" and action != "deny":
        raise InvalidError(code, f"{path}.action", "must be allow or deny")
    if not isinstance(block, str):
        raise InvalidError(code, f"{path}.cidr", "must be a CIDR or an address")
    try:
        return IpRule("allow" if action == "allow" else "deny", normal_cidr(block))
    except ValueError as error:
        raise InvalidError(code, f"{path}.cidr", str(error)) from None


def _methods(raw: object) -> tuple[str, ...]:
    if not isinstance(raw, list | tuple) or not raw:
        raise InvalidError("invalid_route", "methods", "must be a list of methods, and not empty")
    for index, method in enumerate(raw):
        if not isinstance(method, str) or method.upper() not in METHODS:
            raise InvalidError("invalid_route", f"methods[{index}]", f"must be one of {', '.join(METHODS)}")
    return tuple(dict.fromkeys(method.upper() for method in raw))


def _boolean(raw: object) -> bool:
    if not isinstance(raw, bool):
        raise InvalidError("invalid_route", "enabled", "must be true or false")
    return raw


def _metadata(raw: object) -> dict[str, Any]:
    if not isinstance(raw, dict):
        raise InvalidError("invalid_route", "metadata", "must be an object")
    try:
        size_bytes = len(msgspec.msgpack.encode(raw))
    except (RecursionError, ValueError, OverflowError):
        raise InvalidError("invalid_route", "metadata", "cannot be kept") from None
    if size_bytes > MAX_METADATA_BYTES:
        raise InvalidError("invalid_route", "metadata", f"is larger than {MAX_METADATA_BYTES} bytes")
    return raw


def _iso(at: int) -> str:
    return f"{datetime.fromtimestamp(at // 1000, UTC):%Y-%m-%dT%H:%M:%S}.{at % 1000:03d}Z"


def _known(body: Mapping[str, Any], keys: Sequence[str], code: Code) -> None:
    for key in body:
        if key not in keys:
            raise InvalidError(code, key, f"is not a key here: the keys are {', '.join(keys)}")
