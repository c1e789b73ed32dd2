"""Tokens and scopes: the judgement by itself, and each scope at each route."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from api.auth import EVERYTHING, Access, Tokens, access
from schemas.config import AdminToken
from tests.unit.api.node import TOKENS, Node, tokens

JOB = "11111111-1111-7111-8111-111111111111"


def test_a_token_is_known_in_clear_or_by_its_digest_and_no_other_is() -> None:
    digest = hashlib.sha256(b"second").hexdigest()
    known = Tokens([AdminToken(scopes=("read",), token="first"), AdminToken(scopes=("admin",), sha256=digest)])
    assert not known.open
    assert known.judge("first") == Access(read=True)
    assert known.judge("second") == Access(admin=True)
    for wrong in (None, "", "firs", "first ", "Second", digest, "sécond"):
        assert known.judge(wrong) is None, wrong


def test_tokens_are_not_kept_in_clear() -> None:
    known = Tokens([AdminToken(scopes=("admin",), token="the-secret-itself")])
    assert "the-secret-itself" not in repr(vars(known))


def test_without_tokens_everybody_may_everything() -> None:
    assert Tokens([]).judge(None) is EVERYTHING
    assert Tokens([]).judge("anything") is EVERYTHING


def test_new_tokens_replace_all_old_ones() -> None:
    known = Tokens([AdminToken(scopes=("admin",), token="old")])
    known.reconfigure([AdminToken(scopes=("read",), token="new")])
    assert known.judge("old") is None
    assert known.judge("new") == Access(read=True)


def test_scopes_add_up() -> None:
    both = access(("read", "tenant:acme", "tenant:globex"))
    assert both.sees is None
    assert both.changes == {"acme", "globex"}
    assert both.sees_body("acme")
    assert not both.sees_body("initech")
    assert not both.sees_body(None)
    assert access(("tenant:acme",)).sees == {"acme"}
    assert access(("read",)).changes == frozenset()
    assert access(("admin",)).changes is None
    assert access(("admin",)).sees_body(None)


@pytest.mark.parametrize("scope", ["root", "tenant:", "tenant", "", "Admin"])
def test_a_scope_that_does_not_exist_is_refused(scope: str) -> None:
    with pytest.raises(ValueError, match="scope"):
        access((scope,))


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    with Node(tmp_path_factory.mktemp("node"), tokens=tokens()) as made:
        made.dead(tenant="acme", source="orders")
        made.dead(tenant="globex", source="bills")
        made.hold(tenant="acme", source="orders")
        made.hold(tenant="globex", source="bills")
        started = made.ask("POST", "/v1/replays", {"kind": "dlq", "tenants": ["acme"], "job_id": JOB}, scope="admin")
        assert started.status == 202
        assert made.ask("PATCH", f"/v1/replays/{JOB}", {"state": "paused"}, scope="admin").status == 200
        yield made


HOOK = "/v1/hooks/00000000-0000-7000-8000-000000000001"
LIMIT = "/v1/tenants/acme/rate-limit"
OTHERS_LIMIT = "/v1/tenants/initech/rate-limit"

# Each row: method, path, body, and the status for admin, read, tenant:acme, tenant:globex. Rows are asked in order.
MATRIX: list[tuple[str, str, object, tuple[int, int, int, int]]] = [
    ("GET", "/health", None, (200, 200, 200, 200)),
    ("GET", "/ready", None, (200, 200, 200, 200)),
    ("GET", "/metrics", None, (200, 200, 403, 403)),
    ("GET", "/openapi.json", None, (200, 200, 403, 403)),
    ("GET", "/v1/config", None, (200, 200, 403, 403)),
    ("GET", "/v1/stats", None, (200, 200, 200, 200)),
    ("GET", "/v1/dlq", None, (200, 200, 200, 200)),
    ("GET", HOOK, None, (200, 200, 200, 404)),
    ("GET", f"{HOOK}?body=true", None, (200, 403, 200, 404)),
    ("GET", "/v1/replays", None, (200, 200, 200, 200)),
    ("GET", f"/v1/replays/{JOB}", None, (200, 200, 200, 404)),
    ("PATCH", f"/v1/replays/{JOB}", {"rate": 500}, (200, 403, 200, 404)),
    ("POST", "/v1/replays", {"kind": "dlq", "tenants": ["acme"]}, (200, 403, 200, 400)),
    ("POST", "/v1/replays", {"kind": "dlq", "dry_run": True}, (200, 403, 200, 200)),
    ("GET", "/v1/quarantine", None, (200, 200, 200, 200)),
    ("DELETE", "/v1/quarantine?source_id=nobody", None, (200, 403, 200, 200)),
    ("GET", "/v1/rate-limits", None, (200, 200, 200, 200)),
    ("GET", LIMIT, None, (200, 200, 200, 404)),
    ("GET", OTHERS_LIMIT, None, (200, 200, 404, 404)),
    ("PUT", LIMIT, {"rate": 1, "burst": 1}, (200, 403, 403, 403)),
    ("DELETE", LIMIT, None, (204, 403, 403, 403)),
]


@pytest.mark.parametrize(("method", "path", "body", "statuses"), MATRIX, ids=[f"{m} {p}" for m, p, _, _ in MATRIX])
def test_each_scope_at_each_route(
    node: Node, method: str, path: str, body: object, statuses: tuple[int, int, int, int]
) -> None:
    for scope, status in zip(TOKENS, statuses, strict=True):
        reply = node.ask(method, path, body, scope=scope)
        assert reply.status == status, (scope, reply)
        if status == 403:
            assert reply.json["error"] == "forbidden"


@pytest.mark.parametrize(("method", "path", "body", "statuses"), MATRIX, ids=[f"{m} {p}" for m, p, _, _ in MATRIX])
def test_no_token_and_a_wrong_one_get_401_with_a_challenge(
    node: Node, method: str, path: str, body: object, statuses: tuple[int, int, int, int]
) -> None:
    bare = node.ask(method, path, body)
    wrong = node.ask(method, path, body, headers={"Authorization": "Bearer not-a-token"})
    basic = node.ask(method, path, body, headers={"Authorization": "Basic YWRtaW4tdG9rZW4="})
    if path in ("/health", "/ready"):
        assert (bare.status, wrong.status, basic.status) == (200, 200, 200)
        return
    for reply in (bare, wrong, basic):
        assert (reply.status, reply.json) == (401, {"error": "unauthorized"})
    assert bare.headers["www-authenticate"] == 'Bearer realm="ankusa"'
    assert 'error="invalid_token"' in wrong.headers["www-authenticate"]


def test_a_tenant_sees_only_its_own_things(node: Node) -> None:
    for tenant, source in (("acme", "orders"), ("globex", "bills")):
        scope = f"tenant:{tenant}"
        dead = node.get("/v1/dlq", scope=scope)
        assert dead["total"] == 1
        assert {entry["tenant_id"] for entry in dead["entries"]} == {tenant}
        assert node.get(f"/v1/dlq?tenant={tenant}", scope=scope)["entries"] == dead["entries"]
        held = node.get("/v1/quarantine", scope=scope)
        assert [entry["source_id"] for entry in held["entries"]] == [source]
        assert (held["total"], held["bytes"]) == (None, None)
        stats = node.get("/v1/stats", scope=scope)
        assert [sink["source_id"] for sink in stats["sinks"]] == [source]
        assert (stats["lag_ms"], stats["window"], stats["rows"]["dead"]) == (None, None, 1)
    assert node.get("/v1/dlq?tenant=globex", scope="tenant:acme")["entries"] == []
    assert node.get("/v1/replays", scope="tenant:globex") == {"replays": []}
    assert [job["id"] for job in node.get("/v1/replays", scope="tenant:acme")["replays"]] == [JOB]
    assert node.get("/v1/stats", scope="tenant:globex")["jobs"] == []


def test_a_tenants_start_without_tenants_is_its_own(node: Node) -> None:
    plan = node.ask("POST", "/v1/replays", {"kind": "dlq", "dry_run": True}, scope="tenant:globex").json
    assert plan["filter"] == {"tenants": ["globex"]}
    assert plan["by_source"] == {"bills": 1}


def test_a_tenants_purge_leaves_the_others(tmp_path_factory: pytest.TempPathFactory) -> None:
    with Node(tmp_path_factory.mktemp("node"), tokens=tokens()) as node:
        node.hold(tenant="acme")
        kept = node.hold(tenant="globex")
        assert node.ask("DELETE", "/v1/quarantine", scope="tenant:acme").json["deleted"] == 1
        assert [entry["id"] for entry in node.get("/v1/quarantine", scope="read")["entries"]] == [kept]


def test_reloaded_tokens_hold_for_the_next_request(tmp_path_factory: pytest.TempPathFactory) -> None:
    with Node(tmp_path_factory.mktemp("node"), tokens=tokens()) as node:
        assert node.ask("GET", "/v1/dlq", scope="read").status == 200
        node.app.state.tokens.reconfigure([AdminToken(scopes=("admin",), token="other")])
        assert node.ask("GET", "/v1/dlq", scope="read").status == 401
        assert node.ask("GET", "/v1/dlq", headers={"Authorization": "bearer other"}).status == 200


def test_an_open_node_refuses_what_a_page_of_another_site_asks_to_change(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    with Node(tmp_path_factory.mktemp("node")) as node:
        for site in ("cross-site", "same-site"):
            reply = node.ask("POST", "/v1/replays", {"kind": "dlq"}, headers={"Sec-Fetch-Site": site})
            assert (reply.status, reply.json["error"]) == (403, "forbidden")
        assert node.get("/v1/replays") == {"replays": []}
        own = node.ask("POST", "/v1/replays", {"kind": "dlq"}, headers={"Sec-Fetch-Site": "same-origin"})
        assert own.status == 202


@pytest.mark.parametrize("name", ["evil.test", "evil.test:4002", "localhost.evil.test", "127.0.0.1.evil.test"])
def test_without_tokens_a_name_of_somebody_elses_may_nothing(tmp_path: Path, name: str) -> None:
    """A page whose name was made to point at the loopback (DNS rebinding) is its own origin to the browser."""
    with Node(tmp_path) as node:
        reply = node.ask("GET", "/v1/dlq", headers={"Host": name})
        assert (reply.status, reply.json["error"]) == (403, "forbidden")
        for own in ("localhost:4002", "LOCALHOST.", "127.0.0.1", "[::1]:4002"):
            assert node.ask("GET", "/v1/dlq", headers={"Host": own}).status == 200


def test_with_tokens_the_name_does_not_matter(node: Node) -> None:
    assert node.ask("GET", "/v1/dlq", scope="admin", headers={"Host": "admin.example"}).status == 200
