"""The dead-letter listing and single hooks, over a real store."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from schemas.config import Config, Sink, Source, Verify
from schemas.records import ErrorClass, OutcomeKind
from streams.operations import dead_letters as listing
from tests.unit.api.node import START, Node

CONFIG = Config(
    sources={
        name: Source(name=name, tenant=tenant, verify=Verify(type="none"), sinks=(Sink(type="http"),))
        for name, tenant in (("orders", "acme"), ("bills", "globex"))
    }
)
SPEC_FIELDS = {
    *("id", "source_id", "tenant_id", "seq", "received_at", "dead_lettered_at", "size", "content_type", "reason"),
    *("sink", "sink_type", "error_class", "attempts", "replay_id"),
}


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    with Node(tmp_path, config=CONFIG) as made:
        yield made


def ids(page: dict[str, Any]) -> list[str]:
    return [entry["id"] for entry in page["entries"]]


def test_a_dead_letter_has_the_fields_of_the_spec_and_no_body(node: Node) -> None:
    hook_id = node.dead(error="410 gone", body=b"secret-body")
    reply = node.ask("GET", "/v1/dlq")
    page = reply.json
    assert page["total"] == 1
    (entry,) = page["entries"]
    assert set(entry) == SPEC_FIELDS
    assert entry == entry | {
        "id": hook_id,
        "source_id": "orders",
        "tenant_id": "acme",
        "seq": node.seq(hook_id),
        "received_at": START,
        "dead_lettered_at": START + 1,
        "size": 11,
        "content_type": "application/json",
        "reason": "410 gone",
        "sink": 0,
        "sink_type": "http",
        "error_class": "permanent",
        "attempts": 1,
        "replay_id": None,
    }
    assert b"secret-body" not in reply.body
    assert base64.b64encode(b"secret-body") not in reply.body


def test_newest_death_first_whatever_the_order_of_acceptance(node: Node) -> None:
    first, second, third = node.accept(), node.accept(), node.accept()
    for hook_id in (second, third, first):
        node.wall += 1
        node.settle(hook_id, OutcomeKind.DEAD)
    assert ids(node.get("/v1/dlq")) == [first, third, second]


def test_every_filter_by_itself_and_all_together(node: Node) -> None:
    one = node.dead(tenant="acme", source="orders", error_class=ErrorClass.PERMANENT)
    two = node.dead(tenant="globex", source="bills", error_class=ErrorClass.TIMEOUT)
    three = node.accept(tenant="acme", source="orders", sinks=2)
    node.wall += 1
    node.settle(three, OutcomeKind.DEAD, sink=1, error_class=ErrorClass.TRANSIENT)
    times = {entry["id"]: entry["dead_lettered_at"] for entry in node.get("/v1/dlq")["entries"]}
    wanted = {
        "source_id=orders": [three, one],
        "source_id=nobody": [],
        "tenant=globex": [two],
        "sink=1": [three],
        "sink=0": [two, one],
        "error_class=timeout": [two],
        "error_class=retry_after": [],
        f"id={three}": [three],
        "id=unknown": [],
        f"since={times[two]}": [three, two],
        f"until={times[two]}": [two, one],
        f"since={times[two]}&until={times[two]}": [two],
        f"since={times[three] + 1}": [],
        "tenant=acme&error_class=permanent&sink=0&source_id=orders": [one],
        f"id={one}&tenant=globex": [],
        f"id={one}&since={times[two]}": [],
    }
    for query, found in wanted.items():
        page = node.get(f"/v1/dlq?{query}")
        assert ids(page) == found, query
        assert (page["total"], page["next_cursor"]) == (3, None), query


def test_a_hook_dead_at_several_sinks_is_an_entry_for_each(node: Node) -> None:
    hook_id = node.accept(sinks=3)
    for sink in range(3):
        node.settle(hook_id, OutcomeKind.DEAD, sink=sink)
    page = node.get(f"/v1/dlq?id={hook_id}")
    assert [entry["sink"] for entry in page["entries"]] == [2, 1, 0]
    first = node.get(f"/v1/dlq?id={hook_id}&limit=2")
    assert [entry["sink"] for entry in first["entries"]] == [2, 1]
    rest = node.get(f"/v1/dlq?id={hook_id}&limit=2&cursor={first['next_cursor']}")
    assert ([entry["sink"] for entry in rest["entries"]], rest["next_cursor"]) == ([0], None)


def test_limit_is_clamped_and_pages_follow_one_another(node: Node) -> None:
    made = [node.dead() for _ in range(7)]
    assert ids(node.get("/v1/dlq?limit=99999")) == made[::-1]
    for limit in (0, -5):
        page = node.get(f"/v1/dlq?limit={limit}")
        assert (page["total"], page["entries"], page["next_cursor"]) == (7, [], None)
    seen: list[str] = []
    path: str | None = "/v1/dlq?limit=3"
    while path is not None:
        page = node.get(path)
        seen += ids(page)
        path = f"/v1/dlq?limit=3&cursor={page['next_cursor']}" if page["next_cursor"] else None
    assert seen == made[::-1]


def test_a_page_that_ends_exactly_at_the_last_entry_has_no_cursor(node: Node) -> None:
    for _ in range(3):
        node.dead()
    assert node.get("/v1/dlq?limit=3")["next_cursor"] is None


@pytest.mark.parametrize("cursor", ["x", "AAAA", "%00", "A" * 24 + "!", "AAAAAAAAAAAAAAAAAAAAAAAA="])
def test_a_cursor_that_was_not_given_out_is_refused(node: Node, cursor: str) -> None:
    node.dead()
    reply = node.ask("GET", f"/v1/dlq?cursor={cursor}")
    assert (reply.status, reply.json["error"], reply.json["field"]) == (400, "invalid_query", "cursor")


def test_the_work_of_one_call_is_bounded_and_its_cursor_goes_on(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = node.dead(tenant="globex", source="bills")
    for _ in range(10):
        node.dead(tenant="acme")
    monkeypatch.setattr(listing, "SLICE_ROWS", 2)
    monkeypatch.setattr(listing, "SCAN_ROWS", 4)
    page = node.get("/v1/dlq?tenant=globex")
    assert page["entries"] == []
    found, calls = [], 1
    while page["next_cursor"] is not None:
        page = node.get(f"/v1/dlq?tenant=globex&cursor={page['next_cursor']}")
        found += ids(page)
        calls += 1
    assert (found, calls) == ([wanted], 3)


def test_a_page_of_large_hooks_ends_early(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    made = [node.dead(body=b"x" * 10_000) for _ in range(5)]
    monkeypatch.setattr(listing, "SLICE_BYTES", 5_000)
    monkeypatch.setattr(listing, "READ_BYTES", 15_000)
    page = node.get("/v1/dlq")
    assert ids(page) == made[:2:-1]
    rest = node.get(f"/v1/dlq?cursor={page['next_cursor']}")
    assert ids(rest) == made[2:0:-1]


def test_the_loop_goes_on_while_a_long_listing_runs(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    for _ in range(40):
        node.dead(tenant="acme")
    node.dead(tenant="globex", source="bills")
    monkeypatch.setattr(listing, "SLICE_ROWS", 1)

    async def turns() -> int:
        counted = 0
        page = asyncio.create_task(_listed(node))
        while not page.done():
            counted += 1
            await asyncio.sleep(0)
        return counted

    assert node.run(turns) >= 41


async def _listed(node: Node) -> None:
    query = listing.DeadLetterQuery(error_class="timeout")
    await listing.Listing(lambda: node.parts.log.tables, query, None).page()


def test_a_row_whose_hook_is_missing_or_undecodable_is_listed_with_what_the_row_knows(node: Node) -> None:
    missing, broken, whole = node.dead(error="first"), node.dead(error="second"), node.dead(error="third")
    _spoil(node, "hooks", missing, None)
    _spoil(node, "hooks", broken, b"\xff\xff\xff\xffnot a hook")
    page = node.get("/v1/dlq")
    assert [entry["reason"] for entry in page["entries"]] == ["third", "second", "first"]
    assert ids(page) == [whole, None, None]
    for entry in page["entries"][1:]:
        assert (entry["source_id"], entry["tenant_id"], entry["error_class"]) == ("orders", "acme", "permanent")
        assert (entry["received_at"], entry["size"], entry["content_type"]) == (None, None, None)


def test_a_row_that_does_not_decode_never_stops_the_listing(node: Node) -> None:
    broken, whole = node.dead(), node.dead()
    _spoil(node, "rows", broken, b"\xc1")
    page = node.get("/v1/dlq")
    assert (ids(page), page["total"]) == ([whole], 2)


def _spoil(node: Node, family: str, hook_id: str, value: bytes | None) -> None:
    """Overwrite (or delete) a hook's record, or its first row."""
    key = node.seq(hook_id).to_bytes(8, "big") + (b"\0\0" if family == "rows" else b"")
    seq = node.seq(hook_id)

    async def write() -> None:
        tables = node.parts.log.tables
        batch = tables.database.batch()
        if value is None:
            batch.delete(key, tables.database.handles[family])
        else:
            batch.put(key, value, tables.database.handles[family])
        tables.database.write(batch)
        tables.recent.forget(seq)

    node.run(write)


# -- single hooks -----------------------------------------------------------------------------------------------------


def test_a_hook_shows_its_rows_by_state_and_its_history(node: Node) -> None:
    hook_id = node.accept(sinks=4, headers=(("x-event", "paid"), ("x-api-key", "clear"), ("x-signature", "clear")))
    node.wall += 10
    node.settle(hook_id, OutcomeKind.RETRY, sink=1, error_class=ErrorClass.TRANSIENT, due_at=START + 9_000)
    node.settle(hook_id, OutcomeKind.DEAD, sink=2, error="410")
    node.settle(hook_id, OutcomeKind.DELIVERED, sink=3)
    node.claim(1)
    reply = node.ask("GET", f"/v1/hooks/{hook_id}")
    hook = reply.json
    assert {
        row["sink"]: (row["state"], row["due_at"], row["dead_lettered_at"], row["attempts"]) for row in hook["rows"]
    } == {
        0: ("claimed", START, None, 0),
        1: ("pending", START + 9_000, None, 1),
        2: ("dead", None, START + 10, 1),
    }
    assert [
        (line["sink"], line["outcome"], line["attempt"], line["started_at"], line["at"], line["error"], line["detail"])
        for line in hook["attempts"]
    ] == [
        (1, "retry", 1, START + 5, START + 10, "boom", None),
        (2, "dead", 1, START + 5, START + 10, "410", None),
        (3, "delivered", 1, START + 5, START + 10, None, "200"),
    ]
    assert (hook["stored"], hook["size"], hook["received_at"], hook["flagged"]) == (True, 7, START, False)
    assert hook["body_base64"] is None
    assert {"name": "x-event", "value": "paid"} in hook["headers"]
    assert b"clear" not in reply.body


@pytest.mark.parametrize("body", [b"", b"\x00\xff binary", b"x" * 100_000], ids=["empty", "binary", "large"])
def test_the_body_comes_back_byte_for_byte_when_asked_for(node: Node, body: bytes) -> None:
    hook_id = node.accept(body=body)
    assert base64.b64decode(node.get(f"/v1/hooks/{hook_id}?body=true")["body_base64"]) == body
    assert node.get(f"/v1/hooks/{hook_id}?body=false")["body_base64"] is None


def test_a_revived_row_shows_the_replay(node: Node) -> None:
    hook_id = node.dead()
    node.wall += 10
    job = node.ask("POST", "/v1/replays", {"kind": "dlq"}).json
    seq = node.seq(hook_id)

    async def page() -> None:
        from schemas.records import Page, Revival

        row = node.parts.log.tables.row(seq, 0)
        assert row is not None
        node.parts.log.publish(Page(job["id"], node.wall, b"k", 1, 0, (Revival(seq, 0, row.generation),)))

    node.run(page)
    hook = node.get(f"/v1/hooks/{hook_id}")
    assert [(row["state"], row["replay_id"], row["attempts"]) for row in hook["rows"]] == [("pending", job["id"], 0)]
    assert [(line["outcome"], line["replay_id"]) for line in hook["attempts"]] == [
        ("dead", None),
        ("revived", job["id"]),
    ]
    assert node.get("/v1/stats")["rows"]["replayed"] == 1


def test_a_settled_hook_whose_body_was_reclaimed_still_answers_with_its_history(node: Node) -> None:
    hook_id = node.accept(tenant="globex", source="bills")
    node.settle(hook_id, OutcomeKind.DELIVERED)
    _spoil(node, "hooks", hook_id, None)
    hook = node.get(f"/v1/hooks/{hook_id}?body=true")
    assert (hook["stored"], hook["rows"], hook["headers"], hook["body_base64"]) == (False, [], None, None)
    assert (hook["source_id"], hook["tenant_id"], hook["size"]) == ("bills", "globex", None)
    assert [line["outcome"] for line in hook["attempts"]] == ["delivered"]


def test_a_hook_that_does_not_decode_still_answers_with_its_rows(node: Node) -> None:
    hook_id = node.dead()
    _spoil(node, "hooks", hook_id, b"\xff\xff\xff\xff")
    hook = node.get(f"/v1/hooks/{hook_id}?body=true")
    assert (hook["stored"], hook["tenant_id"], hook["body_base64"]) == (True, "acme", None)
    assert [row["state"] for row in hook["rows"]] == ["dead"]


@pytest.mark.parametrize("hook_id", ["nope", "00000000-0000-7000-8000-ffffffffffff", "%00", "%F0%9F%92%A9", "a" * 5000])
def test_an_unknown_hook_is_not_found(node: Node, hook_id: str) -> None:
    reply = node.ask("GET", f"/v1/hooks/{hook_id}")
    assert (reply.status, reply.json) == (404, {"error": "hook_not_found"})


def test_a_lane_member_is_shown_as_one(node: Node) -> None:
    head, member = node.accept(lane="customer-1"), node.accept(lane="customer-1")
    (first,) = node.get(f"/v1/hooks/{head}")["rows"]
    (second,) = node.get(f"/v1/hooks/{member}")["rows"]
    assert (first["state"], first["due_at"], first["lane"]) == ("pending", START, "acme/orders/0/http/customer-1")
    assert (second["state"], second["due_at"], second["lane"]) == ("member", None, "acme/orders/0/http/customer-1")
    assert node.get("/v1/stats")["lanes"] == {"lanes": 1, "members": 1}
    assert node.get("/v1/dlq")["entries"] == []
