"""The rules that span several keys, checked where every single key of the part is sound.

Owns what one node may be told to be as a whole: its listeners, its tokens, its retry policies. The rules of a
verifier, a dedupe, a sink and an egress entry are their own modules'; they are asked here and their faults get
the path they stand at.
"""

from __future__ import annotations

import hashlib
import ipaddress
import re
from collections.abc import Callable
from typing import Any

import msgspec

from ankusa.claim_check.stores import ClaimStoreError, check_store
from ankusa.config.build import Part, build
from ankusa.config.hosts import check_kafka, has_admin
from ankusa.config.problems import Problems, at_index, join
from ankusa.core.ip_rules import normal_cidr
from ankusa.core.route import RouteIndex
from ankusa.edge.dedupe_key import DedupeSpecError, build_dedupe, build_ordering
from ankusa.routes.spec import InvalidError, configured_rules, seeded
from ankusa.seal import Seal, SealKeyError
from ankusa.sinks.contract import OptionError
from ankusa.sinks.egress import Egress as Guard
from ankusa.sinks.egress import EgressSpecError
from ankusa.sinks.registry import check_sink
from ankusa.verify import VerifySpecError, build_verifier
from ankusa.verify.contract import is_header_name
from schemas.config import (
    Admin,
    AdminToken,
    ClaimCheck,
    ClaimStore,
    Dedupe,
    Dispatch,
    Egress,
    Http,
    Kafka,
    LogSettings,
    Node,
    Retry,
    Routes,
    Sink,
    Source,
    SourceStore,
    Verify,
    retry_policy,
)

_TENANT_SCOPE = re.compile(r"tenant:[A-Za-z0-9_-]{1,64}")
_VISIBLE = re.compile(r"[\x21-\x7e]+")
# One source is one ingest path; this is the name under which the node itself publishes.
_RESERVED = "ankusa:lifecycle"


def check_sources_given(document: dict[str, Any], problems: Problems) -> None:
    """A file has to say what is received: a node without a source answers 404 to everything."""
    sources = document.get("sources")
    store = document.get("source_store")
    managed = isinstance(store, dict) and store.get("type") == "persistent"
    if (sources is None or sources == {}) and not managed:
        problems.add("sources", "is empty: give at least one source")
    if isinstance(sources, dict) and _RESERVED in sources:
        problems.add(join("sources", _RESERVED), "is a name the node keeps for itself")


def check_parts(parts: list[Part], egress: Egress | None, problems: Problems) -> None:
    """Each part by its own rules; sinks against `egress`, which is None when it is itself at fault. A rule that reads
    what is at fault waits."""
    guard = _guard(egress, problems)
    for path, part in parts:
        match part:
            case Node():
                _check_node(part, problems)
            case Http():
                _check_ip(part.ip, join(path, "ip"), problems)
            case Kafka():
                check_kafka(part, path, problems)
            case Admin():
                _check_admin(part, path, problems)
            case AdminToken() | Retry() | Verify() | Dedupe() | ClaimStore():
                if not problems.under(path):
                    _check_small(part, path, problems)
            case Sink():
                _ask(path, problems, check_sink, part, guard)
                _check_ordering(part, path, problems)
            case Source():
                _check_source(part, path, problems)
            case ClaimCheck():
                _check_ip(part.ip, join(path, "ip"), problems)
            case Routes():
                _check_routes(part, path, problems)
            case SourceStore():
                _check_source_store(part, path, problems)
            case _:
                pass  # its keys' own ranges are all there is


def check_listeners(
    node: Node,
    log: LogSettings,
    http: Http,
    admin: Admin,
    claim_check: ClaimCheck,
    routes: Routes,
    problems: Problems,
) -> None:
    """Two listeners on one port would leave the second without it, after the first has begun to accept."""
    if _at_fault(problems, "node", "roles") or _at_fault(problems, "log", "type"):
        return
    listeners = [("http", http.ip, http.port)] if "edge" in node.roles else []
    if admin.enabled and has_admin(node, log) and not _at_fault(problems, "admin", "enabled"):
        listeners.append(("admin", admin.ip, admin.port))
    if "claim_check" in node.roles:
        listeners.append(("claim_check", claim_check.ip, claim_check.port))
    if routes.enabled and has_admin(node, log):
        listeners.append(("routes.admin", routes.admin.ip, routes.admin.port))
        _check_open(admin, routes.admin.ip, f"{routes.admin.ip} (routes.admin)", problems)
    listeners = [listener for listener in listeners if not _at_fault(problems, listener[0], "ip", "port")]
    for index, (name, ip, port) in enumerate(listeners):
        for other, other_ip, other_port in listeners[:index]:
            if port == other_port != 0 and _overlap(ip, other_ip):
                problems.add(f"{name}.port", f"{port} is the port of {other} too")


def check_retries(base: Retry, source: Source, path: str, problems: Problems) -> None:
    """The policies that come out of the node's, a source's and its sinks' keys together."""
    if _check_retry(retry_policy(base, source.retry), join(path, "retry"), problems):
        for index, sink in enumerate(source.sinks):
            where = join(at_index(join(path, "sinks"), index), "retry")
            _check_retry(retry_policy(base, source.retry, sink.retry), where, problems)


def validate_dispatch(dispatch: Dispatch) -> None:
    """Check every key of a `dispatch` made by hand or by a reload. Raises `ConfigError` naming each bad one."""
    problems = Problems()
    parts: list[Part] = []
    build(Dispatch, msgspec.to_builtins(dispatch), "dispatch", problems, parts)
    check_parts(parts, None, problems)
    problems.raise_if_any()


def _ask(path: str, problems: Problems, judge: Callable[..., object], *parts: Any) -> None:
    """Let the module that owns a part judge it, and put its answer at the part's path."""
    try:
        judge(*parts)
    except (VerifySpecError, DedupeSpecError, OptionError, ClaimStoreError) as error:
        problems.add(join(path, error.field), error.message)


def _check_retry(retry: Retry, path: str, problems: Problems) -> bool:
    if retry.base_ms > retry.max_ms:
        problems.add(join(path, "base_ms"), f"{retry.base_ms} is more than max_ms, {retry.max_ms}")
        return False
    return True


def _check_node(node: Node, problems: Problems) -> None:
    for index, role in enumerate(node.roles):
        if role in node.roles[:index]:
            problems.add(at_index("node.roles", index), f"`{role}` is given twice")
    if "\0" in node.data_dir:
        problems.add("node.data_dir", "is not the name of a directory")


def _check_admin(admin: Admin, path: str, problems: Problems) -> None:
    _check_ip(admin.ip, join(path, "ip"), problems)
    if admin.enabled and not _at_fault(problems, path, "enabled"):
        _check_open(admin, admin.ip, f"{admin.ip}, which others reach", problems)
    seen: set[str] = set()
    for index, token in enumerate(admin.tokens):
        digest = token.sha256 or hashlib.sha256((token.token or "").encode()).hexdigest()
        if digest in seen:
            problems.add(
                at_index(join(path, "tokens"), index), "is an earlier token again; give one entry all its scopes"
            )
        seen.add(digest)


def _check_open(admin: Admin, ip: str, where: str, problems: Problems) -> None:
    """A listener that goes by `admin.tokens`, at an address that others may reach."""
    known = not _at_fault(problems, "admin", "tokens", "insecure")
    if known and not admin.tokens and not admin.insecure and not is_loopback(ip):
        problems.add("admin.tokens", f"are required to listen on {where}; or set admin.insecure: true")


def _check_small(part: object, path: str, problems: Problems) -> None:
    match part:
        case AdminToken():
            _check_token(part, path, problems)
        case Retry():
            _check_retry(part, path, problems)
        case Verify():
            _ask(path, problems, build_verifier, part)
        case Dedupe():
            _ask(path, problems, build_dedupe, part)
        case ClaimStore():
            _ask(path, problems, check_store, part)


def _check_token(token: AdminToken, path: str, problems: Problems) -> None:
    if (token.token is None) == (token.sha256 is None):
        problems.add(join(path, "token"), "give exactly one of token and sha256")
    elif token.token is not None and not token.token.strip():
        problems.add(join(path, "token"), "is empty")
    elif token.token is not None and not _VISIBLE.fullmatch(token.token):
        problems.add(join(path, "token"), "must be of visible ASCII characters, or no client can send it")
    for index, scope in enumerate(token.scopes):
        if scope not in ("admin", "read") and not _TENANT_SCOPE.fullmatch(scope):
            problems.add(at_index(join(path, "scopes"), index), "must be admin, read or tenant:<id>")


def _guard(egress: Egress | None, problems: Problems) -> Guard:
    """The guard of the node; one that lets all through when it has a fault, which is then the one to mend first."""
    sound = egress is not None
    for index, entry in enumerate(egress.allow if egress else ()):
        try:
            Guard((entry,))
        except EgressSpecError as error:
            problems.add(at_index("egress.allow", index), str(error))
            sound = False
    return Guard(egress.allow if egress and sound else ("0.0.0.0/0", "::/0"))


def _check_ordering(sink: Sink, path: str, problems: Problems) -> None:
    if sink.ordering_key is None:
        return
    if not sink.ordered and not _at_fault(problems, path, "ordered"):
        problems.add(join(path, "ordering_key"), "needs `ordered: true` beside it")
    _ask(join(path, "ordering_key"), problems, build_ordering, sink.ordering_key)


def _check_source(source: Source, path: str, problems: Problems) -> None:
    for index, name in enumerate(source.forward_headers or ()):
        if not is_header_name(name):
            problems.add(at_index(join(path, "forward_headers"), index), "is not a header name")
    if not source.sinks and not _at_fault(problems, path, "sinks"):
        problems.add(join(path, "sinks"), "is empty: give at least one sink")


def _check_routes(routes: Routes, path: str, problems: Problems) -> None:
    _check_ip(routes.admin.ip, join(path, "admin.ip"), problems)
    for index, proxy in enumerate(routes.trusted_proxies):
        try:
            normal_cidr(proxy)
        except ValueError as error:
            problems.add(at_index(join(path, "trusted_proxies"), index), str(error))
    try:
        configured_rules(routes)
    except InvalidError as error:
        problems.add(join(join(path, "ip_rules"), error.refusal.field), error.refusal.message)
    index_of_seeds = RouteIndex()
    ids: set[str] = set()
    for index, seed in enumerate(routes.seed):
        where = at_index(join(path, "seed"), index)
        try:
            route = seeded(seed, 0)
        except InvalidError as error:
            problems.add(join(where, error.refusal.field), error.refusal.message)
            continue
        if route.id in ids or index_of_seeds.conflict(route) is not None:
            problems.add(where, "is an earlier seed again, by its id or by its path and methods")
        ids.add(route.id)
        index_of_seeds.add(route)
    if len(routes.seed) > routes.max_routes:
        problems.add(join(path, "seed"), f"has more routes than max_routes, {routes.max_routes}")


def _check_source_store(store: SourceStore, path: str, problems: Problems) -> None:
    try:
        Seal(store.secret_key)
    except SealKeyError as error:
        problems.add(join(path, "secret_key"), str(error))


def _at_fault(problems: Problems, path: str, *names: str) -> bool:
    """Whether one of these keys of a part has its default in place of what is given."""
    return any(problems.under(join(path, name)) for name in names)


def _check_ip(ip: str, path: str, problems: Problems) -> None:
    if _address(ip) is None:
        problems.add(path, "is not an IP address to listen on, such as 127.0.0.1")


def _address(ip: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address("127.0.0.1" if ip == "localhost" else ip)
    except ValueError:
        return None


def is_loopback(ip: str) -> bool:
    address = _address(ip)
    return address is None or address.is_loopback  # what is no address is noted where it stands


def _overlap(one: str, other: str) -> bool:
    first, second = _address(one), _address(other)
    if first is None or second is None:
        return False
    return first == second or first.is_unspecified or second.is_unspecified
