"""Health, ready, config, stats, and what every route does with a request that is wrong."""

from __future__ import annotations

import asyncio
import http.client
import logging
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ankusa.store.errors import StoreError
from schemas.config import Admin, AdminToken, Config, Dispatch, Sink, Source, Verify
from schemas.records import OutcomeKind
from streams.local.operations import LocalOperations
from tests.unit.api.node import START, Node

CONFIG = Config(
    admin=Admin(tokens=(AdminToken(scopes=("admin",), token="clear-admin-token", name="ops"),)),
    dispatch=Dispatch(sink_concurrency=1),
    sources={
        "orders": Source(
            name="orders",
            tenant="acme",
            verify=Verify(type="github", secret="clear-verify-secret"),
            sinks=(
                Sink(
                    type="http",
                    options={
                        "url": "https://user:clear-password@example.com/hook",
                        "secret": "whsec_clearsigningsecret",
                        "headers": {"Authorization": "Bearer clear-sink-token", "X-Plain": "shown"},
                    },
                ),
            ),
        )
    },
)


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    with Node(tmp_path, config=CONFIG) as made:
        yield made


def test_health_says_who_it_is(node: Node) -> None:
    health = node.get("/health")
    version = health.pop("version")
    assert version[0].isdigit()
    assert health == {"status": "ok", "instance": "default", "roles": ["edge", "dispatch", "storage"]}


def test_head_is_answered_as_get_without_a_body(node: Node) -> None:
    reply = node.ask("HEAD", "/health")
    assert (reply.status, reply.body) == (200, b"")
    assert int(reply.headers["content-length"]) > 0


def test_ready_names_what_is_not(node: Node) -> None:
    assert node.get("/ready") == {"status": "ready"}
    node.parts.log.fail("no room on the disk")
    reply = node.ask("GET", "/ready")
    assert reply.status == 503
    assert reply.json == {"error": "not_ready", "reasons": {"store": "no room on the disk"}}
    assert reply.headers["retry-after"] == "1"
    assert node.get("/health")["status"] == "ok"


def test_the_configuration_is_whole_and_holds_no_secret(node: Node) -> None:
    reply = node.ask("GET", "/v1/config")
    shown = reply.json
    assert shown["dispatch"]["sink_concurrency"] == 1
    assert shown["sources"]["orders"]["sinks"][0]["headers"]["X-Plain"] == "shown"
    assert shown["admin"]["tokens"][0]["name"] == "ops"
    assert b"clear" not in reply.body


def test_stats_count_rows_by_tenant_and_sink_key(node: Node) -> None:
    for _ in range(3):
        node.accept(tenant="acme", source="orders", body=b"x" * 1000)
    node.dead(tenant="acme", source="orders")
    node.settle(node.accept(tenant="globex", source="bills"), OutcomeKind.DELIVERED)
    node.dead(tenant="globex", source="bills")
    node.claim(3)
    stats = node.get("/v1/stats")
    assert stats["rows"] == {"pending": 0, "claimed": 3, "dead": 2, "replayed": 0}
    assert stats["window"]["rows"] == 3
    assert stats["window"]["bytes"] > 3000
    assert stats["window"]["max_rows"] == 4096
    assert stats["lag_ms"] == 0
    acme, globex = stats["tenants"]
    assert (acme["tenant"], acme["claimed"], acme["pending"], acme["dead"]) == ("acme", 3, 0, 1)
    assert acme["claimed_bytes"] == stats["window"]["bytes"]
    assert (globex["tenant"], globex["claimed"], globex["dead"]) == ("globex", 0, 1)
    orders = stats["sinks"][0]
    assert orders == {
        "tenant": "acme",
        "source_id": "orders",
        "sink": 0,
        "sink_type": "http",
        "pending": 3,
        "replayed": 0,
        "dead": 1,
        "waiting": 2,
        "running": 1,
        "breaker": "closed",
        "breaker_until": None,
        "parked": 0,
    }
    assert stats["lanes"] == {"lanes": 0, "members": 0}


def test_lag_is_the_age_of_the_oldest_due_row(node: Node) -> None:
    node.accept()
    node.wall = START + 1500
    assert node.get("/v1/stats")["lag_ms"] == 1500


def test_stats_show_unfinished_jobs_only(node: Node) -> None:
    first = node.ask("POST", "/v1/replays", {"kind": "dlq", "source_id": "orders"}).json
    second = node.ask("POST", "/v1/replays", {"kind": "dlq", "source_id": "bills"}).json
    node.ask("PATCH", f"/v1/replays/{first['id']}", {"state": "cancelled"})
    assert [job["id"] for job in node.get("/v1/stats")["jobs"]] == [second["id"]]


def test_stats_are_paged_by_sink_key(node: Node) -> None:
    for number in range(5):
        node.dead(tenant=f"t{number}", source="orders")
    seen: list[str] = []
    path = "/v1/stats?limit=2"
    for _ in range(3):
        page = node.get(path)
        assert [tenant["tenant"] for tenant in page["tenants"]] == [sink["tenant"] for sink in page["sinks"]]
        assert page["rows"]["dead"] == 5
        seen += [sink["tenant"] for sink in page["sinks"]]
        path = f"/v1/stats?limit=2&cursor={page['next_cursor']}"
    assert seen == ["t0", "t1", "t2", "t3", "t4"]
    assert page["next_cursor"] is None
    assert node.get("/v1/stats?limit=0")["sinks"] == []
    assert node.get("/v1/stats?limit=-3")["sinks"] == []
    reply = node.ask("GET", "/v1/stats?cursor=!!!")
    assert (reply.status, reply.json["error"], reply.json["field"]) == (400, "invalid_query", "cursor")


@pytest.mark.parametrize("path", ["/", "/v1", "/v1/dlq/", "/docs", "/redoc", "/v2/dlq", "/v1/hooks/", "/V1/dlq"])
def test_an_unknown_path_is_404_in_json(node: Node, path: str) -> None:
    reply = node.ask("GET", path)
    assert (reply.status, reply.json) == (404, {"error": "not_found"})


@pytest.mark.parametrize(
    ("method", "path", "allow"),
    [
        ("POST", "/health", {"GET", "HEAD"}),
        ("POST", "/v1/quarantine", {"GET", "HEAD", "DELETE"}),
        ("DELETE", "/v1/replays/x", {"GET", "HEAD", "PATCH"}),
        ("PATCH", "/v1/tenants/acme/rate-limit", {"GET", "HEAD", "PUT", "DELETE"}),
    ],
)
def test_a_wrong_method_is_405_naming_the_right_ones(node: Node, method: str, path: str, allow: set[str]) -> None:
    reply = node.ask(method, path)
    assert (reply.status, reply.json) == (405, {"error": "method_not_allowed"})
    assert set(reply.headers["allow"].split(", ")) == allow


BODY_ROUTES = [("POST", "/v1/replays"), ("PATCH", "/v1/replays/x"), ("PUT", "/v1/tenants/acme/rate-limit")]


@pytest.mark.parametrize(("method", "path"), BODY_ROUTES)
@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"[]", b"null", b'"x"', b"{'a': 1}", b"\xff\xfe", b'{"a": NaN}', b"[" * 100_000, b'{"a":' * 50_000],
    ids=["empty", "cut", "list", "null", "text", "quotes", "bytes", "nan", "deep-list", "deep-object"],
)
def test_a_body_that_is_no_json_object_is_400(node: Node, method: str, path: str, body: bytes) -> None:
    reply = node.ask(method, path, body)
    assert (reply.status, reply.json["error"]) == (400, "invalid_body")


@pytest.mark.parametrize(("method", "path"), BODY_ROUTES)
def test_a_body_over_the_bound_is_413_with_and_without_a_length(node: Node, method: str, path: str) -> None:
    limit = 1 << 20
    large = b'{"kind": "dlq", "x": "' + b"x" * limit + b'"}'
    reply = node.ask(method, path, large)
    assert (reply.status, reply.json) == (413, {"error": "payload_too_large", "limit": limit})
    connection = http.client.HTTPConnection("127.0.0.1", node.port, timeout=30)
    connection.request(method, path, iter([large[:1000], large[1000:]]), encode_chunked=True)
    answer = connection.getresponse()
    assert answer.status == 413
    answer.read()
    connection.close()


def test_a_body_that_is_cut_off_leaves_the_node_answering(node: Node) -> None:
    with socket.create_connection(("127.0.0.1", node.port)) as peer:
        peer.sendall(b"POST /v1/replays HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{")
    assert node.get("/v1/replays") == {"replays": []}


@pytest.mark.parametrize(
    ("path", "field"),
    [
        ("/v1/dlq?limit=ten", "limit"),
        ("/v1/dlq?limit=", "limit"),
        ("/v1/dlq?since=-1", "since"),
        ("/v1/dlq?until=1e3", "until"),
        ("/v1/dlq?since=99999999999999999999999", "since"),
        ("/v1/dlq?sink=70000", "sink"),
        ("/v1/dlq?error_class=oops", "error_class"),
        ("/v1/dlq?source_id=", "source_id"),
        ("/v1/dlq?sorce_id=x", "sorce_id"),
        ("/v1/quarantine?tenant=acme", "tenant"),
        ("/v1/stats?limit=x", "limit"),
        ("/v1/stats?breaker=closed", "breaker"),
        ("/v1/lanes?sink=-1", "sink"),
        ("/v1/lanes?key=x", "key"),
        ("/v1/hooks/x?body=maybe", "body"),
        ("/v1/hooks/x?headers=true", "headers"),
        ("/v1/replays?state=running", "state"),
    ],
)
def test_a_wrong_parameter_is_named(node: Node, path: str, field: str) -> None:
    reply = node.ask("GET", path)
    assert reply.status == 400
    assert (reply.json["error"], reply.json["field"]) == ("invalid_query", field)
    assert reply.json["message"]


def test_a_mistyped_filter_deletes_nothing(node: Node) -> None:
    node.hold()
    assert node.ask("DELETE", "/v1/quarantine?sorce_id=x").status == 400
    assert node.get("/v1/quarantine")["total"] == 1


def test_a_parameter_on_a_start_is_refused_and_starts_nothing(node: Node) -> None:
    reply = node.ask("POST", "/v1/replays?dry_run=true", {"kind": "dlq"})
    assert (reply.status, reply.json["field"]) == (400, "dry_run")
    assert node.get("/v1/replays") == {"replays": []}


@pytest.mark.parametrize("filled", [True, False])
def test_a_store_that_cannot_answer_is_503_and_never_an_empty_list(node: Node, *, filled: bool) -> None:
    hook_id = "unknown"
    if filled:
        hook_id = node.dead()
        node.hold()

    async def close() -> None:
        node.parts.log.fail("the disk is away")
        node.parts.log.tables.close()

    node.run(close)
    asked: list[tuple[str, str, object]] = [
        ("GET", "/v1/dlq", None),
        ("GET", f"/v1/hooks/{hook_id}", None),
        ("GET", "/v1/quarantine", None),
        ("DELETE", "/v1/quarantine", None),
        ("GET", "/v1/stats", None),
        ("GET", "/v1/lanes", None),
        ("GET", "/v1/replays", None),
        ("GET", "/v1/replays/x", None),
        ("POST", "/v1/replays", {"kind": "dlq"}),
        ("PATCH", "/v1/replays/x", {"rate": 5}),
        ("PUT", "/v1/tenants/acme/rate-limit", {"rate": 5, "burst": 5}),
    ]
    for method, path, body in asked:
        reply = node.ask(method, path, body)
        assert (reply.status, reply.json["error"]) == (503, "store_unavailable"), (method, path, reply)
        assert reply.headers["retry-after"] == "1"
    assert node.get("/health")["status"] == "ok"
    assert b"ankusa_store_up 0.0" in node.ask("GET", "/metrics").body
    assert node.get("/v1/tenants/acme/rate-limit")["source"] == "none"


class _Broken:
    """Operations with one method that fails in a way nobody foresaw."""

    def __init__(self, inner: LocalOperations, error: Exception) -> None:
        self._inner, self._error = inner, error

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def config(self) -> dict[str, Any]:
        raise self._error


def test_a_fault_of_ours_is_a_plain_500_and_its_words_are_not_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    broken = RuntimeError("secret-in-a-message")
    with Node(tmp_path, wrap=lambda inner: _Broken(inner, broken)) as node, caplog.at_level(logging.ERROR):
        reply = node.ask("GET", "/v1/config")
        assert (reply.status, reply.json) == (500, {"error": "internal"})
    assert next(record.getMessage() for record in caplog.records if record.name == "ankusa.admin").startswith(
        "event=request_failed error=RuntimeError at=test_node_routes.py:"
    )
    assert "secret-in-a-message" not in caplog.text


def test_a_store_error_anywhere_is_503(tmp_path: Path) -> None:
    with Node(tmp_path, wrap=lambda inner: _Broken(inner, StoreError("away"))) as node:
        reply = node.ask("GET", "/v1/config")
        assert (reply.status, reply.json) == (503, {"error": "store_unavailable", "message": "away"})


def test_an_open_breaker_is_shown_with_its_time(node: Node) -> None:
    async def trip() -> None:
        for _ in range(5):
            node.parts.dispatcher.breakers.resulted("acme/orders/0/http", START, alive=False, probe=False)

    node.run(trip)
    (sink,) = node.get("/v1/stats")["sinks"]
    assert (sink["source_id"], sink["breaker"], sink["breaker_until"]) == ("orders", "open", START + 30_000)
    text = node.ask("GET", "/metrics").body
    assert b"ankusa_open_breakers 1.0" in text
    assert b'ankusa_sink_open_breakers{sink="0",source="orders",tenant="acme",type="http"} 1.0' in text
    node.wall = START + 30_000
    (sink,) = node.get("/v1/stats")["sinks"]
    assert sink["breaker"] == "half_open"


def test_each_open_breaker_is_found_with_the_rows_that_wait_for_it(node: Node) -> None:
    for number in range(12):
        node.accept(tenant="acme" if number < 7 else "globex", source="orders")
    for _ in range(3):
        node.accept(tenant="other", source="orders")
    node.dead(tenant="acme", source="orders")

    async def trip() -> None:
        dispatcher, loop = node.parts.dispatcher, asyncio.get_running_loop()
        for tenant in ("acme", "globex"):
            for _ in range(5):
                dispatcher.breakers.resulted(f"{tenant}/orders/0/http", START, alive=False, probe=False)
        dispatcher.wake()
        deadline = loop.time() + 60
        while dispatcher.stats.outcomes[OutcomeKind.PARKED] < 12 or len(dispatcher.claims.by_place) > 3:
            assert loop.time() < deadline
            await asyncio.sleep(0.001)

    node.run(trip)
    page = node.get("/v1/stats?breaker=open&limit=1")
    assert [(sink["tenant"], sink["breaker"], sink["parked"]) for sink in page["sinks"]] == [("acme", "open", 7)]
    page = node.get(f"/v1/stats?breaker=open&limit=1&cursor={page['next_cursor']}")
    assert [(sink["tenant"], sink["pending"], sink["parked"]) for sink in page["sinks"]] == [("globex", 5, 5)]
    assert page["next_cursor"] is None
    (other,) = [sink for sink in node.get("/v1/stats")["sinks"] if sink["tenant"] == "other"]
    assert (other["breaker"], other["parked"], other["pending"]) == ("closed", 0, 3)
