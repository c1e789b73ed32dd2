"""The routes listener's OpenAPI document against the server: every answer as documented, none left out."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.unit.api.node import tokens
from tests.unit.api.test_openapi import _documented, check
from tests.unit.routes.node import RoutesNode

ROUTES, ROUTE, RULES, TEST = "/admin/routes", "/admin/routes/{route_id}", "/admin/ip-rules", "/admin/routes/test"
BIG = b" " * ((1 << 20) + 1)
TRIED = {"path": "/a", "ip": "192.0.2.1"}

# Method, path as asked, path in the document, body, scope.
ASKED: list[tuple[str, str, str, object, str | None]] = [
    ("GET", "/health", "/health", None, None),
    *(("GET", "/openapi.json", "/openapi.json", None, scope) for scope in ("read", None, "tenant:acme")),
    ("POST", ROUTES, ROUTES, {"path": "/a", "id": "a", "ip_rules": [{"action": "deny", "cidr": "::/0"}]}, "admin"),
    ("POST", ROUTES, ROUTES, {"path": "/a", "id": "a"}, "admin"),
    ("POST", ROUTES, ROUTES, {"path": "/b"}, "admin"),
    ("POST", ROUTES, ROUTES, {"path": "/c"}, "admin"),
    ("POST", ROUTES, ROUTES, {}, "admin"),
    ("POST", ROUTES, ROUTES, {}, None),
    ("POST", ROUTES, ROUTES, {}, "read"),
    ("POST", ROUTES, ROUTES, BIG, "admin"),
    *(
        ("GET", path, ROUTES, None, scope)
        for path, scope in ((ROUTES, "read"), (ROUTES, None), (ROUTES, "tenant:acme"))
    ),
    ("GET", f"{ROUTES}?limit=1", ROUTES, None, "read"),
    ("GET", f"{ROUTES}?limit=x", ROUTES, None, "read"),
    *(("GET", "/admin/routes/a", ROUTE, None, scope) for scope in ("read", None, "tenant:acme")),
    ("GET", "/admin/routes/a?x=1", ROUTE, None, "read"),
    ("GET", "/admin/routes/nope", ROUTE, None, "read"),
    ("PUT", "/admin/routes/a", ROUTE, {"path": "/a"}, "admin"),
    ("PUT", "/admin/routes/a", ROUTE, {"path": "a"}, "admin"),
    ("PUT", "/admin/routes/a", ROUTE, {"path": "/b"}, "admin"),
    ("PUT", "/admin/routes/a", ROUTE, {}, None),
    ("PUT", "/admin/routes/a", ROUTE, {}, "read"),
    ("PUT", "/admin/routes/a", ROUTE, BIG, "admin"),
    ("PATCH", "/admin/routes/a", ROUTE, {"enabled": True}, "admin"),
    ("PATCH", "/admin/routes/a", ROUTE, {"enabled": 1}, "admin"),
    ("PATCH", "/admin/routes/a", ROUTE, {}, None),
    ("PATCH", "/admin/routes/a", ROUTE, {}, "read"),
    ("PATCH", "/admin/routes/nope", ROUTE, {}, "admin"),
    ("PATCH", "/admin/routes/a", ROUTE, BIG, "admin"),
    ("DELETE", "/admin/routes/a?x=1", ROUTE, None, "admin"),
    ("DELETE", "/admin/routes/a", ROUTE, None, None),
    ("DELETE", "/admin/routes/a", ROUTE, None, "read"),
    ("DELETE", "/admin/routes/a", ROUTE, None, "admin"),
    ("DELETE", "/admin/routes/a", ROUTE, None, "admin"),
    ("PUT", "/admin/routes/new", ROUTE, {"path": "/new"}, "admin"),
    ("PATCH", "/admin/routes/new", ROUTE, {"enabled": False}, "admin"),
    *(("GET", RULES, RULES, None, scope) for scope in ("read", None, "tenant:acme")),
    ("GET", f"{RULES}?x=1", RULES, None, "read"),
    ("PUT", RULES, RULES, {"rules": [{"action": "deny", "cidr": "192.0.2.1"}]}, "admin"),
    ("PUT", RULES, RULES, {"rules": 1}, "admin"),
    ("PUT", RULES, RULES, {}, None),
    ("PUT", RULES, RULES, {}, "read"),
    ("PUT", RULES, RULES, BIG, "admin"),
    ("POST", TEST, TEST, TRIED, "read"),
    ("POST", TEST, TEST, {}, "read"),
    ("POST", TEST, TEST, TRIED, None),
    ("POST", TEST, TEST, TRIED, "tenant:acme"),
    ("POST", TEST, TEST, BIG, "read"),
]


@pytest.fixture
def node(tmp_path: Path) -> Iterator[RoutesNode]:
    with RoutesNode(tmp_path, tokens=tokens(), max_routes=2) as made:
        yield made


def test_every_answer_is_as_documented_and_every_documented_one_is_given(node: RoutesNode) -> None:
    document: dict[str, Any] = node.get("/openapi.json", scope="read")
    seen: set[tuple[str, str, str]] = set()
    for method, asked, path, body, scope in ASKED:
        reply = node.ask(method, asked, body, scope=scope)
        check(document, method, path, reply)
        seen.add((method.lower(), path, str(reply.status)))
    # A change of `methods` that meets another route.
    assert node.ask("PUT", "/admin/routes/new", {"path": "/b", "methods": ["PUT"]}, scope="admin").status == 200
    reply = node.ask("PATCH", "/admin/routes/new", {"methods": ["POST"]}, scope="admin")
    check(document, "PATCH", ROUTE, reply)
    seen.add(("patch", ROUTE, str(reply.status)))
    node.parts.log.fail("away")
    changes = (
        ("POST", ROUTES, ROUTES, {"path": "/z"}),
        ("PUT", "/admin/routes/new", ROUTE, {"path": "/b", "methods": ["PUT"]}),
        ("PATCH", "/admin/routes/new", ROUTE, {"metadata": {}}),
        ("DELETE", "/admin/routes/new", ROUTE, None),
        ("PUT", RULES, RULES, {}),
    )
    assert node.ask("GET", ROUTES, scope="read").status == 200
    for method, asked, path, body in changes[1:]:
        reply = node.ask(method, asked, body, scope="admin")
        check(document, method, path, reply)
        seen.add((method.lower(), path, str(reply.status)))
    assert _documented(document) - seen == {("post", ROUTES, "503")}  # it is full


def test_a_route_that_cannot_be_stored_is_refused_as_documented(node: RoutesNode) -> None:
    document: dict[str, Any] = node.get("/openapi.json", scope="read")
    node.parts.log.fail("away")
    reply = node.ask("POST", ROUTES, {"path": "/z"}, scope="admin")
    assert reply.status == 503
    check(document, "POST", ROUTES, reply)
