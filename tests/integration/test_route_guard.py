"""The route guard of a real node: deny by default, changes that hold at once, and the published client."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.integration.test_client_sdk import python  # noqa: F401 - a fixture
from tests.support.node import Answer, Node, ask
from tests.support.node_process import free_port, poll

LOG = {"verify": {"type": "none"}, "sinks": [{"type": "log"}]}


class Guarded(Node):
    """A node with its guard on. `routes` are keys of the section."""

    def __init__(self, folder: Path, *, edges: int = 1, routes: dict[str, Any] | None = None, **config: Any) -> None:
        self.routes_port = free_port()
        section = {"enabled": True, "admin": {"port": self.routes_port}, **(routes or {})}
        sources = {"orders": LOG, "bills": LOG}
        super().__init__(folder, {"node": {"edges": edges}, "sources": sources, "routes": section, **config})

    def set_up(self, method: str, path: str, body: Any = None) -> Answer:
        raw = None if body is None else json.dumps(body).encode()
        return ask(self.routes_port, method, path, raw, {"content-type": "application/json"})


@pytest.mark.parametrize("edges", [0, 2])
def test_nothing_is_taken_that_no_route_lets_through_and_changes_hold_from_their_answer_on(
    tmp_path: Path, edges: int
) -> None:
    with Guarded(tmp_path, edges=edges) as node:

        def statuses(source: str, count: int = 4) -> set[int]:
            return {node.post(source).status for _ in range(count)}  # of two edges, either may answer

        poll("every edge to be told", lambda: statuses("orders", 16) == {404})
        assert node.set_up("POST", "/admin/routes", {"path": "/webhooks/orders", "id": "orders"}).status == 201
        assert (statuses("orders"), statuses("bills")) == ({201}, {404})
        assert node.set_up("PUT", "/admin/routes/all", {"path": "/webhooks/:source"}).status == 201
        assert statuses("bills") == {201}
        rules = [{"action": "allow", "cidr": "192.0.2.0/24"}]
        assert node.set_up("PATCH", "/admin/routes/orders", {"ip_rules": rules}).status == 200
        assert (statuses("orders"), statuses("bills")) == ({403}, {201})
        assert (
            node.set_up("PUT", "/admin/ip-rules", {"rules": [{"action": "deny", "cidr": "127.0.0.0/8"}]}).status == 200
        )
        assert statuses("bills") == statuses("nowhere") == {403}
        assert node.set_up("PUT", "/admin/ip-rules", {}).status == 200
        assert node.set_up("DELETE", "/admin/routes/all").status == 204
        assert statuses("bills") == {404}
        # What is not a catch URL is not the guard's.
        assert ask(node.http_port, "GET", "/health").status == ask(node.http_port, "GET", "/ready").status == 200
        assert node.set_up("GET", "/health").json == {"status": "ok", "routes": 1}
        assert node.get("/v1/config")["routes"]["enabled"] is True


def test_a_denied_request_stores_nothing(tmp_path: Path) -> None:
    with Guarded(tmp_path) as node:
        for _ in range(5):
            assert node.post("orders", b"x" * 100_000).status == 404
        metrics = node.admin("GET", "/metrics").body.decode()
        assert 'ankusa_submissions_total{status="accepted"} 0.0' in metrics


def test_routes_outlive_every_process_and_an_edge_keeps_them_while_the_engine_is_away(tmp_path: Path) -> None:
    seed = [{"path": "/webhooks/bills", "id": "bills"}]
    with Guarded(tmp_path, routes={"seed": seed, "ip_denied_status": 404}) as node:
        assert node.post("bills").status == 201
        assert node.set_up("PUT", "/admin/routes/orders", {"path": "/webhooks/orders"}).status == 201
        node.kill()
        node.start()
        assert node.post("orders").status == node.post("bills").status == 201
        node.kill_one("engine_process")
        seen: set[int] = set()
        poll("hooks again", lambda: seen.add(node.post("orders").status) or 201 in seen)
        assert seen <= {201, 503}
        node.kill_one("edge_process")
        seen.clear()
        poll("hooks again", lambda: seen.add(node.post("orders").status) or 201 in seen)
        assert seen <= {201, 503}
        poll("the listener", lambda: node.set_up("GET", "/health").json["routes"] == 2)
        assert node.set_up("PUT", "/admin/ip-rules", {"default": "deny"}).status == 200
        refused = node.post("orders")
        assert (refused.status, refused.json) == (404, {"error": "not_found"})


def test_whose_address_counts_behind_a_proxy(tmp_path: Path) -> None:
    routes = {
        "trusted_proxies": ["127.0.0.1"],
        "seed": [{"path": "/webhooks/*", "ip_rules": [{"action": "allow", "cidr": "192.0.2.0/24"}]}],
    }
    with Guarded(tmp_path, routes=routes) as node:

        def status(*forwarded: str) -> int:
            return node.post("orders", headers={"x-forwarded-for": ", ".join(forwarded)} if forwarded else {}).status

        assert status("192.0.2.7") == 201
        assert status("198.51.100.1", "192.0.2.7") == 201
        assert status("192.0.2.7", "198.51.100.1") == 403
        assert status() == 403


def test_sources_and_routes_set_up_together(tmp_path: Path) -> None:
    with Guarded(tmp_path, source_store={"type": "persistent"}) as node:
        spec = {"name": "orders", "sinks": [{"type": "log"}]}
        assert node.admin("POST", "/v1/tenants/acme/sources", spec).status == 201
        assert node.post("acme.orders").status == 404
        assert node.set_up("POST", "/admin/routes", {"path": "/webhooks/acme.orders"}).status == 201
        assert node.post("acme.orders").status == 201


# -- the published client ---------------------------------------------------------------------

SCRIPT = """
import json, sys
from ankusa.routes import RoutesClient, RoutesError

url, token, calls = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
found = []
with RoutesClient(url, headers={"Authorization": "Bearer " + token} if token else None) as client:
    for name, arguments in calls:
        try:
            found.append({"answer": getattr(client, name)(*arguments)})
        except RoutesError as error:
            names = ("status", "code", "field", "message", "conflicting_id", "max_routes", "retryable")
            found.append({"raised": type(error).__name__, **{name: getattr(error, name, None) for name in names}})
methods = [name for name in vars(RoutesClient) if not name.startswith("_") and name != "close"]
print(json.dumps({"found": found, "methods": methods}))
"""


def client(interpreter: Path, node: Guarded, calls: list[Any], token: str = "") -> tuple[list[Any], list[str]]:
    url = f"http://127.0.0.1:{node.routes_port}"
    command = [str(interpreter), "-I", "-c", SCRIPT, url, token, json.dumps(calls)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    printed = json.loads(done.stdout)
    return printed["found"], printed["methods"]


RULES = {"default": "allow", "rules": [{"action": "deny", "cidr": "203.0.113.0/24"}]}
CALLS: list[Any] = [
    ["health", []],
    ["create_route", [{"id": "orders", "path": "/webhooks/orders", "metadata": {"owner": "billing"}}]],
    ["create_route", [{"id": "other", "path": "/webhooks/orders/"}]],
    ["get_route", ["orders"]],
    ["replace_route", ["orders", {"path": "/webhooks/orders", "methods": ["POST", "PUT"]}]],
    ["replace_route", ["bills", {"path": "/webhooks/bills"}]],
    ["create_route", [{"path": "/webhooks/third"}]],
    ["update_route", ["bills", {"enabled": False}]],
    ["update_route", ["bills", {"path": "/x"}]],
    ["list_routes", []],
    ["list_routes", [{"enabled": True, "limit": 1, "cursor": None}]],
    ["list_routes", [{"limit": "many"}]],
    ["put_ip_rules", [RULES]],
    ["get_ip_rules", []],
    ["put_ip_rules", [{"rules": [{"action": "deny", "cidr": "nonsense"}]}]],
    ["test_route", [{"method": "POST", "path": "/webhooks/orders", "ip": "203.0.113.9"}]],
    ["test_route", [{"method": "POST", "path": "/webhooks/orders", "ip": "192.0.2.1"}]],
    ["test_route", [{"path": "/webhooks/orders"}]],
    ["get_route", ["no/such?route#%"]],
    ["get_route", [".."]],
    ["delete_route", ["bills"]],
    ["delete_route", ["bills"]],
]


def test_every_method_of_the_routes_client(python: Path, tmp_path: Path) -> None:  # noqa: F811
    token = "routes-token-0123456789"
    admin = {"tokens": [{"token": token, "scopes": ["admin"]}]}
    with Guarded(tmp_path, routes={"max_routes": 2}, admin=admin) as node:
        found, methods = client(
            python,
            node,
            CALLS,
            token,
        )
        answers = [one.get("answer") for one in found]
        raised = [(one["raised"], one["status"], one["code"]) if "raised" in one else None for one in found]
        assert answers[0] == {"status": "ok", "routes": 0}
        assert (answers[1]["id"], answers[1]["metadata"]) == ("orders", {"owner": "billing"})
        assert raised[2] == ("RoutesRejectedError", 409, "duplicate_route")
        assert found[2]["conflicting_id"] == "orders"
        assert answers[3] == answers[1]
        assert answers[4]["methods"] == ["POST", "PUT"]
        assert answers[5]["id"] == "bills"
        assert raised[6] == ("RoutesRejectedError", 409, "too_many_routes")
        assert found[6]["max_routes"] == 2
        assert answers[7]["enabled"] is False
        assert raised[8] == ("RoutesRejectedError", 400, "invalid_route")
        assert found[8]["field"] == "path" and found[8]["message"]
        assert [route["id"] for route in answers[9]["routes"]] == ["bills", "orders"]
        assert answers[9]["next_cursor"] is None
        assert [route["id"] for route in answers[10]["routes"]] == ["orders"]
        assert raised[11] == ("RoutesRejectedError", 400, "invalid_query")
        assert answers[12] == answers[13] == RULES
        assert raised[14] == ("RoutesRejectedError", 400, "invalid_ip_rules")
        assert answers[15] == {
            "decision": "deny",
            "reason": "ip_denied",
            "route_id": None,
            "ip_rule": {"action": "deny", "cidr": "203.0.113.0/24", "scope": "global"},
        }
        assert answers[16] == {"decision": "allow", "reason": "matched", "route_id": "orders", "ip_rule": None}
        assert raised[17] == ("RoutesRejectedError", 400, "invalid_request")
        assert found[18]["raised"] == "RouteNotFoundError"
        assert found[19]["raised"] == "InvalidRouteIdError"
        assert "raised" not in found[20]
        assert found[21]["raised"] == "RouteNotFoundError"
        assert {*methods} == {name for name, _ in CALLS}
        (refused,), _ = client(python, node, [["list_routes", []]])
        assert (refused["raised"], refused["status"], refused["retryable"]) == ("RoutesRejectedError", 401, False)
        node.stop()
        (gone,), _ = client(python, node, [["health", []]], token)
        assert (gone["raised"], gone["retryable"]) == ("RoutesUnavailableError", True)
