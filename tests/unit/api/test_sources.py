"""Sources through the admin API: what is set up holds, is shown without its secrets, and goes only when it may."""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ankusa.source_store.store import UnreadableSourcesError
from ankusa.store.errors import StoreError
from schemas.config import Config, Http, Sink, Source, SourceStore, Verify
from schemas.records import ChangeAction, ChangeKind, OutcomeKind, Topic, decode_change
from tests.unit.api.node import START, Node, tokens

KEY = base64.b64encode(bytes(32)).decode()
OTHER_KEY = base64.b64encode(bytes([1]) * 32).decode()
SINK = {"type": "http", "url": "https://example.com/hooks"}
STRIPE = {"type": "stripe", "secret": "whsec_0123456789abcdef"}
SOURCES = "/v1/tenants/acme/sources"


def config(**store: Any) -> Config:
    return Config(source_store=SourceStore(**{"type": "persistent", "secret_key": KEY, **store}))


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    with Node(tmp_path, config=config(), tokens=tokens()) as made:
        yield made


def create(node: Node, name: str = "orders", tenant: str = "acme", scope: str = "admin", **spec: Any) -> Any:
    body = {"name": name, "sinks": [SINK], **spec}
    reply = node.ask("POST", f"/v1/tenants/{tenant}/sources", body, scope=scope)
    assert reply.status == 201, reply
    return reply.json


def audit(node: Node) -> list[tuple[Any, ...]]:
    async def read() -> list[tuple[Any, ...]]:
        found = [decode_change(record) for _, _, record in node.parts.log.read(Topic.AUDIT)]
        return [(one.kind, one.subject, one.action, one.at, json.loads(one.entity)) for one in found]

    return node.run(read)


def test_a_source_is_set_up_and_shown(node: Node) -> None:
    made = create(node, verify=STRIPE, on_verify_failure="quarantine", dedupe="stripe")
    assert made == {
        "tenant": "acme",
        "name": "orders",
        "source_id": "acme.orders",
        "ingest_path": "/webhooks/acme.orders",
        "verify": {"type": "stripe", "secret": "[redacted]"},
        "on_verify_failure": "quarantine",
        "dedupe": {"preset": "stripe", "ttl_seconds": 259_200},
        "forward_headers": None,
        "retry": {},
        "sinks": [SINK],
        "created_at": START,
        "updated_at": START,
    }
    assert node.get(f"{SOURCES}/orders", scope="read") == made
    assert node.get(SOURCES, scope="tenant:acme") == {"tenant": "acme", "entries": [made]}
    ((source_id, source),) = node.parts.announced
    assert source_id == "acme.orders"
    assert source is not None and source.verify.secret == "whsec_0123456789abcdef"


def test_the_path_with_the_tenant_in_it(tmp_path: Path) -> None:
    shop = Source(name="shop", tenant="acme", verify=Verify(type="none"), sinks=(Sink(type="log"),))
    http = Http(routing="tenant_path", prefix="/in")
    with Node(
        tmp_path, config=Config(http=http, source_store=SourceStore(type="persistent"), sources={"shop": shop})
    ) as node:
        reply = node.ask("POST", SOURCES, {"name": "orders", "sinks": [SINK]})
        assert (reply.status, reply.json["ingest_path"]) == (201, "/in/acme/orders")
        taken = node.ask("POST", SOURCES, {"name": "shop", "sinks": [SINK]})  # one path leads to one source
        assert (taken.status, taken.json) == (409, {"error": "source_exists"})
        assert node.ask("POST", "/v1/tenants/globex/sources", {"name": "shop", "sinks": [SINK]}).status == 201


def test_a_source_is_replaced_whole_and_keeps_when_it_was_made(node: Node) -> None:
    create(node, verify=STRIPE, dedupe="stripe")
    node.wall += 5
    reply = node.ask("PUT", f"{SOURCES}/orders", {"sinks": [{"type": "log"}]}, scope="tenant:acme")
    assert reply.status == 200
    found = reply.json
    assert (found["verify"], found["dedupe"], found["sinks"]) == ({"type": "none"}, None, [{"type": "log"}])
    assert (found["created_at"], found["updated_at"]) == (START, START + 5)
    assert node.get(f"{SOURCES}/orders", scope="read") == found


def test_names_are_a_tenants_own(node: Node) -> None:
    create(node)
    create(node, tenant="globex")
    again = node.ask("POST", SOURCES, {"name": "orders", "sinks": [SINK]}, scope="admin")
    assert (again.status, again.json) == (409, {"error": "source_exists"})
    assert [entry["tenant"] for entry in node.get(SOURCES, scope="admin")["entries"]] == ["acme"]
    create(node, name="bills")
    assert [entry["name"] for entry in node.get(SOURCES, scope="admin")["entries"]] == ["bills", "orders"]


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE"])
def test_what_there_is_not(node: Node, method: str) -> None:
    body = {"sinks": [SINK]} if method == "PUT" else None
    reply = node.ask(method, f"{SOURCES}/orders", body, scope="admin")
    assert (reply.status, reply.json) == (404, {"error": "source_not_found"})


@pytest.mark.parametrize(
    ("body", "field", "words"),
    [
        ({"sinks": [SINK]}, "name", "must match"),
        ({"sinks": [SINK], "name": "a.b"}, "name", "must match"),
        ({"sinks": [SINK], "name": 5}, "name", "must match"),
        ({"name": "orders"}, "sinks", "give at least one sink"),
        ({"name": "orders", "sinks": [{"type": "http"}]}, "sinks[0].url", "sinks[0].url: is required"),
        ({"name": "orders", "sinks": [SINK], "extra": 1}, "extra", "not a known key"),
        ({"name": "orders", "sinks": [{**SINK, "url": "http://10.0.0.1/"}]}, "sinks[0].url", "egress_denied"),
        ({"name": "orders", "sinks": [{**SINK, "url": "https://e.com/${HOME}"}]}, "sinks[0].url", "not resolved"),
        ({"name": "orders", "sinks": [SINK], "k" * 9000: 1}, "k" * 200, "not a known key"),
    ],
)
def test_a_wrong_spec_names_the_field(node: Node, body: dict[str, Any], field: str, words: str) -> None:
    reply = node.ask("POST", SOURCES, body, scope="admin")
    assert reply.status == 400
    assert reply.json["error"] == "invalid_source"
    assert reply.json["field"] == field
    assert words in reply.json["message"] or len(field) == 200
    assert len(reply.body) < 5_000
    assert node.get(SOURCES, scope="admin")["entries"] == []
    assert node.parts.announced == []


@pytest.mark.parametrize("tenant", ["a.b", "a%20b", "x" * 65])
def test_a_tenant_that_cannot_be(node: Node, tenant: str) -> None:
    reply = node.ask("GET", f"/v1/tenants/{tenant}/sources", scope="admin")
    assert (reply.status, reply.json["error"]) == (400, "invalid_tenant")


def test_scopes(node: Node) -> None:
    create(node, scope="tenant:acme")
    for method, path in (("GET", SOURCES), ("GET", f"{SOURCES}/orders"), ("DELETE", f"{SOURCES}/orders")):
        assert node.ask(method, path, scope="tenant:globex").status == 404
        assert node.ask(method, path).status == 401
    assert node.ask("DELETE", f"{SOURCES}/orders", scope="read").status == 403
    assert node.ask("PUT", f"{SOURCES}/orders", {"sinks": [SINK]}, scope="read").status == 403
    assert node.ask("DELETE", f"{SOURCES}/orders", scope="tenant:acme").status == 204


def test_a_source_without_rows_is_deleted(node: Node) -> None:
    create(node)
    reply = node.ask("DELETE", f"{SOURCES}/orders", scope="admin")
    assert (reply.status, reply.body) == (204, b"")
    assert node.get(SOURCES, scope="admin")["entries"] == []
    assert node.parts.announced[-1] == ("acme.orders", None)
    create(node)  # and its name is free


def test_unsettled_rows_keep_a_source_until_they_are_killed(node: Node) -> None:
    create(node)
    for _ in range(3):
        node.accept(source="acme.orders")
    reply = node.ask("DELETE", f"{SOURCES}/orders", scope="admin")
    assert (reply.status, reply.json) == (409, {"error": "source_has_deliveries", "pending": 3, "inflight": 0})
    node.claim(3)
    reply = node.ask("DELETE", f"{SOURCES}/orders", scope="admin")
    assert (reply.status, reply.json) == (409, {"error": "source_has_deliveries", "pending": 0, "inflight": 3})
    for _ in range(2):
        node.accept(source="acme.orders")
    assert node.ask("DELETE", f"{SOURCES}/orders?deliveries=dead_letter", scope="admin").status == 204
    dead = node.get("/v1/dlq?source_id=acme.orders", scope="admin")
    assert dead["total"] == 2
    assert {entry["reason"] for entry in dead["entries"]} == {"dead_lettered"}


def test_dead_rows_do_not_keep_a_source(node: Node) -> None:
    create(node)
    node.settle(node.accept(source="acme.orders"), OutcomeKind.DEAD)
    assert node.ask("DELETE", f"{SOURCES}/orders", scope="admin").status == 204


def test_a_kill_that_is_not_done_keeps_the_source(node: Node) -> None:
    create(node)
    node.accept(source="acme.orders")
    node.parts.log.fail("the disk is away")
    reply = node.ask("DELETE", f"{SOURCES}/orders?deliveries=dead_letter", scope="admin")
    assert (reply.status, reply.json["error"]) == (503, "store_unavailable")
    assert node.get(f"{SOURCES}/orders", scope="admin")["name"] == "orders"


@pytest.mark.parametrize("query", ["?deliveries=drop", "?deliveries=", "?force=true"])
def test_a_mistyped_deletion_deletes_nothing(node: Node, query: str) -> None:
    create(node)
    assert node.ask("DELETE", f"{SOURCES}/orders{query}", scope="admin").status == 400
    assert node.get(f"{SOURCES}/orders", scope="admin")


def test_every_change_is_an_audit_record_without_secrets(node: Node) -> None:
    made = create(node, verify=STRIPE)
    node.wall += 1
    node.ask("PUT", f"{SOURCES}/orders", {"sinks": [{"type": "log"}], "verify": STRIPE}, scope="admin")
    node.ask("PUT", f"{SOURCES}/orders", {"sinks": []}, scope="admin")  # refused: no record
    node.wall += 1
    node.ask("DELETE", f"{SOURCES}/orders", scope="admin")
    node.ask("DELETE", f"{SOURCES}/orders", scope="admin")
    found = audit(node)
    assert [one[:4] for one in found] == [
        (ChangeKind.SOURCE, "acme.orders", ChangeAction.CREATED, START),
        (ChangeKind.SOURCE, "acme.orders", ChangeAction.UPDATED, START + 1),
        (ChangeKind.SOURCE, "acme.orders", ChangeAction.DELETED, START + 2),
    ]
    assert found[0][4] == made
    assert found[2][4]["sinks"] == [{"type": "log"}]
    assert "0123456789" not in json.dumps([one[4] for one in found])


def test_no_more_than_the_node_takes(tmp_path: Path) -> None:
    with Node(tmp_path, config=config(max_sources=2)) as node:
        for name in ("a", "b"):
            assert node.ask("POST", SOURCES, {"name": name, "sinks": [SINK]}).status == 201
        reply = node.ask("POST", SOURCES, {"name": "c", "sinks": [SINK]})
        assert (reply.status, reply.json) == (409, {"error": "too_many_sources", "max_sources": 2})
        assert node.ask("PUT", f"{SOURCES}/a", {"sinks": [SINK]}).status == 200


# -- keys and restarts ------------------------------------------------------------------


def stored(node: Node) -> dict[str, bytes]:
    async def read() -> dict[str, bytes]:
        return node.parts.log.tables.set_up("sources")

    return node.run(read)


def test_sources_are_there_after_a_restart_and_sealed_on_disk(tmp_path: Path) -> None:
    with Node(tmp_path, config=config(), tokens=tokens()) as node:
        made = create(node, verify=STRIPE, retry={"max_attempts": 3})
        create(node, name="gone")
        assert node.ask("DELETE", f"{SOURCES}/gone", scope="admin").status == 204
        assert list(stored(node)) == ["acme.orders"]
    for file in (tmp_path / "store").iterdir():
        assert not file.is_file() or b"0123456789abcdef" not in file.read_bytes(), file.name
    with Node(tmp_path, config=config(), tokens=tokens()) as node:
        assert node.get(SOURCES, scope="read")["entries"] == [made]
        source = node.parts.source_store.source("acme.orders")
        assert source is not None and source.verify.secret == "whsec_0123456789abcdef"


@pytest.mark.parametrize(
    ("spec", "field"),
    [
        ({"verify": STRIPE, "sinks": [SINK]}, "verify.secret"),
        ({"sinks": [{**SINK, "headers": {"x-api-key": "abc"}}]}, "sinks[0].headers.x-api-key"),
        ({"sinks": [SINK, {**SINK, "url": "https://e.com/T0AB12CD3/B9ZX8YW7V/a1B2c3D4e5F6g7H8"}]}, "sinks[1].url"),
    ],
)
def test_without_a_key_a_secret_is_refused_with_the_way_out(tmp_path: Path, spec: dict[str, Any], field: str) -> None:
    with Node(tmp_path, config=config(secret_key=None)) as node:
        reply = node.ask("POST", SOURCES, {"name": "orders", **spec})
        assert reply.status == 400
        assert reply.json["field"] == field
        assert "source_store.secret_key" in reply.json["message"]
        assert node.ask("POST", SOURCES, {"name": "orders", "sinks": [SINK]}).status == 201


def test_a_key_is_changed_by_giving_both(tmp_path: Path) -> None:
    with Node(tmp_path, config=config()) as node:
        assert node.ask("POST", SOURCES, {"name": "orders", "sinks": [SINK], "verify": STRIPE}).status == 201
    with Node(tmp_path, config=config(secret_key=(OTHER_KEY, KEY))) as node:
        before = stored(node)
        node.run(node.parts.source_store.reseal)
        assert stored(node).keys() == before.keys()
        assert stored(node) != before
        assert len(audit(node)) == 1  # nothing was changed
    with Node(tmp_path, config=config(secret_key=OTHER_KEY)) as node:
        assert node.get(f"{SOURCES}/orders")["updated_at"] == START


def test_sources_that_cannot_be_read_keep_the_node_from_starting_unless_it_may_ignore_them(tmp_path: Path) -> None:
    with Node(tmp_path, config=config()) as node:
        for name in ("orders", "bills"):
            assert node.ask("POST", SOURCES, {"name": name, "sinks": [SINK], "verify": STRIPE}).status == 201
    for keys in (OTHER_KEY, None):
        words = r"acme\.bills is sealed with a key that is not given, acme\.orders"
        with pytest.raises(UnreadableSourcesError, match=words), Node(tmp_path, config=config(secret_key=keys)):
            pass
    with Node(tmp_path, config=config(secret_key=OTHER_KEY, ignore_unreadable=True)) as node:
        assert node.get(SOURCES)["entries"] == []
        assert node.ask("POST", SOURCES, {"name": "orders", "sinks": [SINK]}).status == 201  # set up again


def test_turned_off_the_api_shows_and_changes_nothing(tmp_path: Path) -> None:
    with Node(tmp_path, config=config()) as node:
        assert node.ask("POST", SOURCES, {"name": "orders", "sinks": [SINK]}).status == 201
    with Node(tmp_path) as node:
        assert node.get(SOURCES)["entries"] == []
        assert node.parts.source_store.source("acme.orders") is None
        for method, path in (("PUT", f"{SOURCES}/orders"), ("DELETE", f"{SOURCES}/orders"), ("POST", SOURCES)):
            body = None if method == "DELETE" else {"name": "orders", "sinks": [SINK]}
            assert node.ask(method, path, body).json == {"error": "source_store_read_only"}
    with Node(tmp_path, config=config()) as node:
        assert len(node.get(SOURCES)["entries"]) == 1


def test_a_change_whose_durability_fails_is_refused_and_taken_back(node: Node) -> None:
    made = create(node)

    async def refuse() -> None:
        def flush() -> None:
            raise StoreError("Input/output error")

        node.parts.log.tables.database.flush = flush  # type: ignore[method-assign]

    node.run(refuse)
    assert node.ask("PUT", f"{SOURCES}/orders", {"sinks": [{"type": "log"}]}, scope="admin").status == 503
    assert node.get(f"{SOURCES}/orders", scope="admin") == made
    assert len(node.parts.announced) == 1

    async def recover() -> None:
        node.parts.log.recover()

    before = stored(node)
    assert len(audit(node)) == 2  # it reached the store, and may yet become durable
    node.run(recover)
    assert stored(node) != before  # the old spec is back in the store
    assert len(audit(node)) == 1  # and nobody will be told of what was refused
    assert node.ask("PUT", f"{SOURCES}/orders", {"sinks": [{"type": "log"}]}, scope="admin").status == 200


def test_two_writers_of_one_name_make_one_source(node: Node) -> None:
    statuses: list[int] = []

    def post() -> None:
        statuses.append(node.ask("POST", SOURCES, {"name": "orders", "sinks": [SINK]}, scope="admin").status)

    threads = [threading.Thread(target=post) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(statuses) == [201] + [409] * 7
    assert len(audit(node)) == 1
