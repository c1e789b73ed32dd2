"""The pen: listing and purging, over a real store."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from streams.operations import pen
from tests.unit.api.node import START, Node


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    with Node(tmp_path) as made:
        yield made


def ids(page: dict[str, Any]) -> list[str]:
    return [entry["id"] for entry in page["entries"]]


def test_a_held_hook_is_listed_without_its_body(node: Node) -> None:
    hook_id = node.hold(body=b"held-body")
    reply = node.ask("GET", "/v1/quarantine")
    page = reply.json
    assert page["entries"] == [
        {
            "id": hook_id,
            "source_id": "orders",
            "tenant_id": "acme",
            "received_at": START + 1,
            "reason": "signature",
            "size": 9,
            "method": "POST",
            "path": "/webhooks/orders",
        }
    ]
    assert page["total"] == 1
    assert page["bytes"] > 9
    assert b"held-body" not in reply.body


def test_newest_first_with_filters_limit_and_cursor(node: Node) -> None:
    made = [node.hold(source="orders" if number % 2 else "bills") for number in range(6)]
    assert ids(node.get("/v1/quarantine")) == made[::-1]
    assert ids(node.get("/v1/quarantine?source_id=orders")) == [made[5], made[3], made[1]]
    assert ids(node.get(f"/v1/quarantine?since={START + 3}&until={START + 4}")) == [made[3], made[2]]
    assert ids(node.get("/v1/quarantine?source_id=nobody")) == []
    assert ids(node.get("/v1/quarantine?limit=0")) == []
    seen: list[str] = []
    path: str | None = "/v1/quarantine?limit=4"
    while path is not None:
        page = node.get(path)
        seen += ids(page)
        path = f"/v1/quarantine?limit=4&cursor={page['next_cursor']}" if page["next_cursor"] else None
    assert seen == made[::-1]
    reply = node.ask("GET", "/v1/quarantine?cursor=AAAA")
    assert (reply.status, reply.json["field"]) == (400, "cursor")


def test_one_listing_reads_a_bounded_amount(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    made = [node.hold(body=b"x" * 4000) for _ in range(6)]
    monkeypatch.setattr(pen, "SLICE_BYTES", 5_000)
    monkeypatch.setattr(pen, "READ_BYTES", 8_000)
    page = node.get("/v1/quarantine")
    assert ids(page) == made[:3:-1]
    assert ids(node.get(f"/v1/quarantine?cursor={page['next_cursor']}")) == made[3:1:-1]


def test_a_purge_deletes_oldest_first_and_says_what_it_freed(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pen, "SLICE_ENTRIES", 2)
    made = [node.hold() for _ in range(5)]
    before = node.get("/v1/quarantine")
    reply = node.ask("DELETE", "/v1/quarantine?limit=3")
    assert reply.status == 200
    after = node.get("/v1/quarantine")
    assert reply.json == {"deleted": 3, "bytes": before["bytes"] - after["bytes"]}
    assert ids(after) == made[:2:-1]
    assert after["total"] == 2
    assert node.ask("DELETE", "/v1/quarantine").json["deleted"] == 2
    assert node.ask("DELETE", "/v1/quarantine").json == {"deleted": 0, "bytes": 0}
    assert node.get("/v1/quarantine") == {"entries": [], "total": 0, "bytes": 0, "next_cursor": None}


def test_a_purge_keeps_what_its_filters_do_not_name(node: Node) -> None:
    made = [node.hold(source="orders" if number % 2 else "bills") for number in range(6)]
    assert node.ask("DELETE", f"/v1/quarantine?source_id=orders&until={START + 4}").json["deleted"] == 2
    assert ids(node.get("/v1/quarantine")) == [made[5], made[4], made[2], made[0]]
    assert node.ask("DELETE", "/v1/quarantine?limit=-1").json["deleted"] == 0
    assert node.ask("DELETE", f"/v1/quarantine?since={START + 5}").json["deleted"] == 2
    assert ids(node.get("/v1/quarantine")) == [made[2], made[0]]


def test_a_purge_is_at_most_its_bound(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pen, "PURGE_LIMIT", 2)
    for _ in range(3):
        node.hold()
    assert node.ask("DELETE", "/v1/quarantine?limit=100000").json["deleted"] == 2


def test_two_purges_at_once_count_every_entry_once(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    import asyncio

    monkeypatch.setattr(pen, "SLICE_ENTRIES", 3)
    for _ in range(20):
        node.hold()
    held_bytes = node.get("/v1/quarantine")["bytes"]

    async def both() -> list[Any]:
        log = node.parts.log
        return await asyncio.gather(
            *(pen.purge(lambda: log.tables, log, pen.PurgeQuery(limit=100), None) for _ in range(2))
        )

    purged = node.run(both)
    assert sum(one.deleted for one in purged) == 20
    assert sum(one.bytes for one in purged) == held_bytes
    assert node.get("/v1/quarantine")["total"] == 0


def test_what_was_purged_stays_away_after_a_restart(tmp_path: Path) -> None:
    with Node(tmp_path) as node:
        node.hold()
        kept = node.hold()
        assert node.ask("DELETE", "/v1/quarantine?limit=1").json["deleted"] == 1
    with Node(tmp_path) as node:
        assert ids(node.get("/v1/quarantine")) == [kept]
