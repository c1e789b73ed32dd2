"""The routes listener: routes are made, changed, listed and tried out, kept over restarts, and audited."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ankusa.routes.spec import MAX_METADATA_BYTES, MAX_RULES, SLUG
from ankusa.store.errors import StoreError
from schemas.config import IpRuleSetting, IpRulesSettings, RouteSeed
from schemas.records import ChangeAction, ChangeKind, IpRulesChange, RouteChange, Topic, decode_change
from schemas.routes import IpRule, IpRules
from tests.unit.api.node import tokens
from tests.unit.routes.node import RoutesNode

ROUTES = "/admin/routes"
ISO = "2023-11-14T22:13:20.000Z"  # tests.unit.api.node.START


@pytest.fixture
def node(tmp_path: Path) -> Iterator[RoutesNode]:
    with RoutesNode(tmp_path) as made:
        yield made


def create(node: RoutesNode, path: str = "/webhooks/orders", **keys: Any) -> Any:
    reply = node.ask("POST", ROUTES, {"path": path, **keys})
    assert reply.status == 201, reply
    return reply.json


def refusal(node: RoutesNode, method: str, path: str, body: object = None) -> tuple[int, Any]:
    reply = node.ask(method, path, body)
    return reply.status, reply.json


def test_a_route_is_made_with_its_defaults(node: RoutesNode) -> None:
    made = create(node)
    assert SLUG.fullmatch(made["id"])
    assert made == {
        "id": made["id"],
        "path": "/webhooks/orders",
        "methods": ["POST"],
        "enabled": True,
        "ip_rules": [],
        "metadata": {},
        "inserted_at": ISO,
        "updated_at": ISO,
    }
    assert node.get(f"{ROUTES}/{made['id']}") == made
    assert node.get("/health") == {"status": "ok", "routes": 1}
    (record,) = node.announced
    assert isinstance(record, RouteChange) and record.id == made["id"]


def test_a_route_is_kept_in_its_normal_form(node: RoutesNode) -> None:
    made = create(
        node,
        "/webhooks//:tenant/",
        id="acme_1",
        methods=["post", "PUT", "POST"],
        enabled=False,
        ip_rules=[{"action": "allow", "cidr": "::ffff:192.0.2.0/120"}, {"action": "deny", "cidr": "2001:DB8::1"}],
        metadata={"owner": "billing", "nested": {"n": [1, None, 2.5]}},
    )
    assert made["path"] == "/webhooks/:tenant"
    assert made["methods"] == ["POST", "PUT"]
    assert made["ip_rules"] == [
        {"action": "allow", "cidr": "192.0.2.0/24"},
        {"action": "deny", "cidr": "2001:db8::1/128"},
    ]
    assert made["metadata"] == {"owner": "billing", "nested": {"n": [1, None, 2.5]}}


def test_put_makes_and_replaces_whole(node: RoutesNode) -> None:
    first = node.ask("PUT", f"{ROUTES}/orders", {"path": "/a", "metadata": {"n": 1}})
    assert (first.status, first.json["id"]) == (201, "orders")
    node.wall += 1500
    second = node.ask("PUT", f"{ROUTES}/orders", {"path": "/b", "id": "orders"})
    assert second.status == 200
    assert (second.json["path"], second.json["metadata"]) == ("/b", {})
    assert (second.json["inserted_at"], second.json["updated_at"]) == (ISO, "2023-11-14T22:13:21.500Z")
    again = node.ask("PUT", f"{ROUTES}/orders", {"path": "/b"})
    assert again.status == 200
    create(node, "/a")  # its old path is free


def test_patch_changes_only_what_it_names(node: RoutesNode) -> None:
    create(node, id="orders", metadata={"n": 1})
    rules = [{"action": "allow", "cidr": "192.0.2.0/24"}]
    reply = node.ask("PATCH", f"{ROUTES}/orders", {"enabled": False, "ip_rules": rules})
    assert reply.status == 200
    assert (reply.json["enabled"], reply.json["ip_rules"], reply.json["metadata"]) == (False, rules, {"n": 1})
    assert node.ask("PATCH", f"{ROUTES}/orders", {"methods": ["PUT"], "metadata": {}}).json["methods"] == ["PUT"]
    assert node.ask("PATCH", f"{ROUTES}/orders", {}).status == 200
    for key, value in (("path", "/x"), ("id", "x"), ("inserted_at", ISO)):
        status, refused = refusal(node, "PATCH", f"{ROUTES}/orders", {key: value})
        assert (status, refused["error"], refused["field"]) == (400, "invalid_route", key)


def test_delete(node: RoutesNode) -> None:
    create(node, id="orders")
    reply = node.ask("DELETE", f"{ROUTES}/orders")
    assert (reply.status, reply.body) == (204, b"")
    for method, body in (("GET", None), ("DELETE", None), ("PATCH", {})):
        assert refusal(node, method, f"{ROUTES}/orders", body) == (404, {"error": "not_found"})
    assert node.announced[-1] == RouteChange("orders", node.wall, None)


def test_routes_of_one_path_and_method_do_not_live_together(node: RoutesNode) -> None:
    create(node, "/a/:x", id="one", methods=["POST", "PUT"])
    assert refusal(node, "POST", ROUTES, {"path": "/b", "id": "one"}) == (
        409,
        {"error": "duplicate_route", "conflicting_id": "one"},
    )
    for method, path, body in (
        ("POST", ROUTES, {"path": "/a/:y"}),
        ("PUT", f"{ROUTES}/two", {"path": "/a/:y", "methods": ["PUT"]}),
    ):
        assert refusal(node, method, path, body) == (409, {"error": "duplicate_route", "conflicting_id": "one"})
    create(node, "/a/:y", id="two", methods=["GET"])
    create(node, "/a/:z", id="off", enabled=False)
    for route_id, change in (("off", {"enabled": True}), ("two", {"methods": ["GET", "PUT"]})):
        status, refused = refusal(node, "PATCH", f"{ROUTES}/{route_id}", change)
        assert (status, refused["conflicting_id"]) == (409, "one")
    assert node.ask("PATCH", f"{ROUTES}/one", {"enabled": False}).status == 200
    assert node.ask("PATCH", f"{ROUTES}/off", {"enabled": True}).status == 200


def test_no_more_than_the_node_takes(tmp_path: Path) -> None:
    with RoutesNode(tmp_path, max_routes=2) as node:
        create(node, "/a", id="a")
        create(node, "/b")
        for method, path in (("POST", ROUTES), ("PUT", f"{ROUTES}/c")):
            assert refusal(node, method, path, {"path": "/c"}) == (409, {"error": "too_many_routes", "max_routes": 2})
        assert node.ask("PUT", f"{ROUTES}/a", {"path": "/c"}).status == 200


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "path"),
        ({"path": 5}, "path"),
        ({"path": "a"}, "path"),
        ({"path": "/a/*/b"}, "path"),
        ({"path": "/a", "id": ""}, "id"),
        ({"path": "/a", "id": "A"}, "id"),
        ({"path": "/a", "id": "-a"}, "id"),
        ({"path": "/a", "id": "a" * 65}, "id"),
        ({"path": "/a", "id": "a\n"}, "id"),
        ({"path": "/a", "id": 7}, "id"),
        ({"path": "/a", "methods": []}, "methods"),
        ({"path": "/a", "methods": "POST"}, "methods"),
        ({"path": "/a", "methods": ["POST", "BREW"]}, "methods[1]"),
        ({"path": "/a", "enabled": "yes"}, "enabled"),
        ({"path": "/a", "enabled": None}, "enabled"),
        ({"path": "/a", "ip_rules": {}}, "ip_rules"),
        ({"path": "/a", "ip_rules": [5]}, "ip_rules[0]"),
        ({"path": "/a", "ip_rules": [{"action": "allow"}]}, "ip_rules[0].cidr"),
        ({"path": "/a", "ip_rules": [{"action": "maybe", "cidr": "::/0"}]}, "ip_rules[0].action"),
        ({"path": "/a", "ip_rules": [{"action": "deny", "cidr": "10.0.0.1/8"}]}, "ip_rules[0].cidr"),
        ({"path": "/a", "ip_rules": [{"action": "deny", "cidr": "::/0", "note": "x"}]}, "ip_rules[0].note"),
        ({"path": "/a", "ip_rules": [{"action": "deny", "cidr": "::/0"}] * (MAX_RULES + 1)}, "ip_rules"),
        ({"path": "/a", "metadata": []}, "metadata"),
        ({"path": "/a", "metadata": {"x": "y" * MAX_METADATA_BYTES}}, "metadata"),
        ({"path": "/a", "metadata": {"x": 1 << 70}}, "metadata"),
        ({"path": "/a", "inserted_at": ISO}, "inserted_at"),
        ({"path": "/a", "k" * 900: 1}, "k" * 200),
    ],
)
def test_a_wrong_route_names_the_field(node: RoutesNode, body: dict[str, Any], field: str) -> None:
    status, refused = refusal(node, "POST", ROUTES, body)
    assert (status, refused["error"], refused["field"]) == (400, "invalid_route", field)
    assert refused["message"]
    assert node.get("/health")["routes"] == 0
    assert node.announced == []


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'"x"', b"\xff"])
def test_a_body_that_is_no_object(node: RoutesNode, body: bytes) -> None:
    status, refused = refusal(node, "POST", ROUTES, body)
    assert (status, refused["error"]) == (400, "invalid_body")


def test_another_id_in_the_body_than_in_the_path(node: RoutesNode) -> None:
    status, refused = refusal(node, "PUT", f"{ROUTES}/one", {"path": "/a", "id": "two"})
    assert (status, refused["field"]) == (400, "id")
    status, refused = refusal(node, "PUT", f"{ROUTES}/ONE", {"path": "/a"})
    assert (status, refused["field"]) == (400, "id")


def test_a_wrong_method_and_a_wrong_path_are_not_found(node: RoutesNode) -> None:
    for method, path in (("DELETE", ROUTES), ("PUT", ROUTES), ("GET", "/admin"), ("POST", "/health"), ("GET", "/")):
        assert refusal(node, method, path) == (404, {"error": "not_found"})
    assert refusal(node, "POST", "/admin/ip-rules", {}) == (404, {"error": "not_found"})


# -- lists ------------------------------------------------------------------------------------


def test_pages_cover_every_route_once(node: RoutesNode) -> None:
    for number in range(25):
        create(node, f"/r/{number}", id=f"r{number:02d}", enabled=number % 5 != 0)
    seen: list[str] = []
    cursor = ""
    while True:
        page = node.get(f"{ROUTES}?limit=10" + (f"&cursor={cursor}" if cursor else ""))
        seen += [route["id"] for route in page["routes"]]
        cursor = page["next_cursor"]
        if cursor is None:
            break
    assert seen == [f"r{number:02d}" for number in range(25)]
    assert len(node.get(f"{ROUTES}?enabled=false")["routes"]) == 5
    assert len(node.get(f"{ROUTES}?enabled=true")["routes"]) == 20
    assert node.get(f"{ROUTES}?limit=5000")["next_cursor"] is None
    assert len(node.get(f"{ROUTES}?limit=0")["routes"]) == 1
    page = node.get(f"{ROUTES}?limit=25")
    assert page["next_cursor"] is None


@pytest.mark.parametrize("query", ["limit=many", "enabled=perhaps", "cursor=%2F%2F", "offset=3", "cursor="])
def test_a_wrong_query_names_the_parameter(node: RoutesNode, query: str) -> None:
    status, refused = refusal(node, "GET", f"{ROUTES}?{query}")
    assert (status, refused["error"], refused["field"]) == (400, "invalid_query", query.split("=")[0])


# -- ip rules and dry runs ----------------------------------------------------------------------


def test_global_rules_are_replaced_whole(node: RoutesNode) -> None:
    assert node.get("/admin/ip-rules") == {"default": "allow", "rules": []}
    body = {"default": "deny", "rules": [{"action": "allow", "cidr": "192.0.2.1"}, {"action": "deny", "cidr": "::/0"}]}
    reply = node.ask("PUT", "/admin/ip-rules", body)
    stored = {
        "default": "deny",
        "rules": [{"action": "allow", "cidr": "192.0.2.1/32"}, {"action": "deny", "cidr": "::/0"}],
    }
    assert (reply.status, reply.json) == (200, stored)
    assert node.get("/admin/ip-rules") == stored
    (record,) = node.announced
    assert isinstance(record, IpRulesChange)
    assert node.ask("PUT", "/admin/ip-rules", {}).json == {"default": "allow", "rules": []}


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"default": "maybe"}, "default"),
        ({"rules": "x"}, "rules"),
        ({"rules": [{"action": "allow", "cidr": "x"}]}, "rules[0].cidr"),
        ({"allow": []}, "allow"),
    ],
)
def test_wrong_global_rules_name_the_field(node: RoutesNode, body: dict[str, Any], field: str) -> None:
    status, refused = refusal(node, "PUT", "/admin/ip-rules", body)
    assert (status, refused["error"], refused["field"]) == (400, "invalid_ip_rules", field)


def test_a_dry_run_says_what_decides(node: RoutesNode) -> None:
    create(node, id="open")
    create(node, "/webhooks/own", id="own", ip_rules=[{"action": "allow", "cidr": "192.0.2.0/24"}])
    node.ask("PUT", "/admin/ip-rules", {"rules": [{"action": "deny", "cidr": "203.0.113.0/24"}]})

    def tested(path: str, ip: str, method: str = "POST") -> Any:
        reply = node.ask("POST", f"{ROUTES}/test", {"method": method, "path": path, "ip": ip})
        assert reply.status == 200, reply
        return reply.json

    assert tested("/webhooks/orders?x=1", "192.0.2.1") == {
        "decision": "allow",
        "reason": "matched",
        "route_id": "open",
        "ip_rule": None,
    }
    assert tested("/webhooks/own", "192.0.2.1")["ip_rule"] == {
        "action": "allow",
        "cidr": "192.0.2.0/24",
        "scope": "route",
    }
    assert tested("/webhooks/own", "198.51.100.1") == {
        "decision": "deny",
        "reason": "ip_denied",
        "route_id": "own",
        "ip_rule": None,
    }
    assert tested("/nowhere", "::ffff:203.0.113.5") == {
        "decision": "deny",
        "reason": "ip_denied",
        "route_id": None,
        "ip_rule": {"action": "deny", "cidr": "203.0.113.0/24", "scope": "global"},
    }
    assert tested("/nowhere", "192.0.2.1")["reason"] == "no_route"
    assert tested("/webhooks/orders", "192.0.2.1", "put")["reason"] == "method"
    assert (
        node.ask("POST", f"{ROUTES}/test", {"path": "/webhooks/orders", "ip": "192.0.2.1"}).json["decision"] == "allow"
    )
    assert node.get("/health")["routes"] == 2


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"path": "/a"}, "ip"),
        ({"path": "/a", "ip": "nowhere"}, "ip"),
        ({"ip": "192.0.2.1"}, "path"),
        ({"path": "a", "ip": "192.0.2.1"}, "path"),
        ({"path": "/a", "ip": "192.0.2.1", "method": "BREW"}, "method"),
        ({"path": "/a", "ip": "192.0.2.1", "headers": {}}, "headers"),
    ],
)
def test_a_wrong_dry_run_names_the_field(node: RoutesNode, body: dict[str, Any], field: str) -> None:
    status, refused = refusal(node, "POST", f"{ROUTES}/test", body)
    assert (status, refused["error"], refused["field"]) == (400, "invalid_request", field)


# -- who may, what stays --------------------------------------------------------------------------


def test_scopes(tmp_path: Path) -> None:
    with RoutesNode(tmp_path, tokens=tokens()) as node:
        assert node.ask("GET", "/health").status == 200
        changes = (
            ("POST", ROUTES, {"path": "/a", "id": "a"}),
            ("PUT", f"{ROUTES}/a", {"path": "/a"}),
            ("PATCH", f"{ROUTES}/a", {}),
            ("PUT", "/admin/ip-rules", {}),
            ("DELETE", f"{ROUTES}/a", None),
        )
        for method, path, body in changes:
            assert node.ask(method, path, body).status == 401
            for scope in ("read", "tenant:acme"):
                assert node.ask(method, path, body, scope=scope).status == 403
            assert node.ask(method, path, body, scope="admin").status < 300
        looks = (
            ("GET", ROUTES, None),
            ("GET", "/admin/ip-rules", None),
            ("POST", f"{ROUTES}/test", {"path": "/a", "ip": "::1"}),
        )
        for method, path, body in looks:
            assert node.ask(method, path, body).status == 401
            assert node.ask(method, path, body, scope="tenant:acme").status == 403
            assert node.ask(method, path, body, scope="read").status == 200


def test_routes_and_rules_are_there_after_a_restart(tmp_path: Path) -> None:
    with RoutesNode(tmp_path) as node:
        kept = create(node, id="kept", metadata={"n": 1}, ip_rules=[{"action": "allow", "cidr": "::/0"}])
        create(node, "/gone", id="gone")
        node.ask("DELETE", f"{ROUTES}/gone")
        node.ask("PUT", "/admin/ip-rules", {"default": "deny"})
    with RoutesNode(tmp_path) as node:
        assert node.get(ROUTES) == {"routes": [kept], "next_cursor": None}
        assert node.get("/admin/ip-rules")["default"] == "deny"
        assert node.store.ip_rules == IpRules("deny")


def test_seeds_are_there_from_the_start_and_what_the_api_changed_stands(tmp_path: Path) -> None:
    seeds = (RouteSeed(path="/webhooks/:source", id="all"), RouteSeed(path="/other", methods=("PUT",)))
    rules = IpRulesSettings(default="deny", rules=(IpRuleSetting(action="allow", cidr="192.0.2.0/24"),))
    with RoutesNode(tmp_path, seed=seeds, ip_rules=rules) as node:
        planted = {route["id"]: route for route in node.get(ROUTES)["routes"]}
        assert planted["all"]["path"] == "/webhooks/:source"
        (other,) = planted.keys() - {"all"}
        assert other.startswith("seed-")
        assert node.store.ip_rules == IpRules("deny", (IpRule("allow", "192.0.2.0/24"),))
        node.ask("PATCH", f"{ROUTES}/all", {"enabled": False})
        node.ask("PUT", "/admin/ip-rules", {})
        node.ask("DELETE", f"{ROUTES}/{other}")
    with RoutesNode(tmp_path, seed=seeds, ip_rules=rules) as node:
        found = {route["id"]: route["enabled"] for route in node.get(ROUTES)["routes"]}
        assert found == {"all": False, other: True}  # who wants a seed gone takes it out of the file
        assert node.get("/admin/ip-rules") == {"default": "allow", "rules": []}
        node.ask("DELETE", f"{ROUTES}/all")
        create(node, "/webhooks/:name", id="mine")
    with RoutesNode(tmp_path, seed=seeds) as node:  # in the way of a seed: the seed waits
        assert {route["id"] for route in node.get(ROUTES)["routes"]} == {"mine", other}


def audit(node: RoutesNode) -> list[tuple[Any, ...]]:
    async def read() -> list[tuple[Any, ...]]:
        found = [decode_change(record) for _, _, record in node.parts.log.read(Topic.AUDIT)]
        return [(one.kind, one.subject, one.action, json.loads(one.entity)) for one in found]

    return node.run(read)


def test_every_change_is_an_audit_record(node: RoutesNode) -> None:
    made = create(node, id="orders", metadata={"owner": "billing", "api_key": "hunter2hunter2"})
    node.ask("PATCH", f"{ROUTES}/orders", {"enabled": False})
    node.ask("PUT", f"{ROUTES}/orders", {"path": "/b"})
    node.ask("PUT", f"{ROUTES}/other", {"path": "/c"})
    node.ask("PUT", "/admin/ip-rules", {"default": "deny"})
    node.ask("DELETE", f"{ROUTES}/orders")
    node.ask("POST", ROUTES, {"path": "nothing"})
    found = audit(node)
    assert [one[:3] for one in found] == [
        (ChangeKind.ROUTE, "orders", ChangeAction.CREATED),
        (ChangeKind.ROUTE, "orders", ChangeAction.UPDATED),
        (ChangeKind.ROUTE, "orders", ChangeAction.UPDATED),
        (ChangeKind.ROUTE, "other", ChangeAction.CREATED),
        (ChangeKind.IP_RULES, "ip-rules", ChangeAction.UPDATED),
        (ChangeKind.ROUTE, "orders", ChangeAction.DELETED),
    ]
    assert found[0][3] == made | {"metadata": {"owner": "billing", "api_key": "[redacted]"}}
    assert found[4][3] == {"default": "deny", "rules": []}
    assert found[5][3]["path"] == "/b"


def test_a_change_whose_durability_fails_is_refused_and_taken_back(node: RoutesNode) -> None:
    made = create(node, id="orders")

    async def refuse() -> None:
        def flush() -> None:
            raise StoreError("Input/output error")

        node.parts.log.tables.database.flush = flush  # type: ignore[method-assign]

    node.run(refuse)
    for method, path, body in (
        ("PATCH", f"{ROUTES}/orders", {"enabled": False}),
        ("DELETE", f"{ROUTES}/orders", None),
        ("POST", ROUTES, {"path": "/b"}),
        ("PUT", "/admin/ip-rules", {"default": "deny"}),
    ):
        status, refused = refusal(node, method, path, body)
        assert (status, refused["error"]) == (503, "store_unavailable")
    assert node.get(ROUTES)["routes"] == [made]
    assert len(node.announced) == 1

    async def recover() -> None:
        node.parts.log.recover()

    node.run(recover)

    async def kept() -> list[str]:
        return list(node.parts.log.tables.set_up("routes"))

    assert node.run(kept) == ["orders"]
    assert len(audit(node)) == 1  # nobody will be told of what was refused
    assert node.ask("PATCH", f"{ROUTES}/orders", {"enabled": False}).status == 200


def test_two_writers_of_one_path_make_one_route(node: RoutesNode) -> None:
    statuses: list[int] = []

    def post() -> None:
        statuses.append(node.ask("POST", ROUTES, {"path": "/webhooks/orders"}).status)

    threads = [threading.Thread(target=post) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(statuses) == [201] + [409] * 7
    assert len(audit(node)) == 1
