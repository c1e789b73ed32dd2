"""Lanes of ordered sinks as the API and the scrape show them: depth, head, age; paged, scoped, never a long walk."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ankusa.store import keys
from ankusa.store.database import Database
from schemas.records import OutcomeKind, lane_key
from streams.local.lane_sweep import LONG_LANES, SLICE
from tests.unit.api.node import START, Node, tokens


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    with Node(tmp_path) as made:
        yield made


def sweep(node: Node) -> None:
    async def run() -> None:
        for _ in node.parts.sweeper.lanes(node.wall):
            pass

    node.run(run)


def scrape(node: Node) -> dict[str, float]:
    lines = node.ask("GET", "/metrics").body.decode().splitlines()
    return {name: float(value) for name, _, value in (line.partition(" ") for line in lines) if name[0] != "#"}


def pages(node: Node, query: str = "", limit: int = 2) -> list[dict[str, Any]]:
    """Every entry, page by page."""
    found: list[dict[str, Any]] = []
    cursor = ""
    while True:
        page = node.get(f"/v1/lanes?limit={limit}{query}{cursor}")
        assert len(page["entries"]) <= limit
        found += page["entries"]
        if page["next_cursor"] is None:
            return found
        cursor = f"&cursor={page['next_cursor']}"


def test_a_lane_is_shown_with_its_depth_and_its_head(node: Node) -> None:
    head = node.accept(lane="customer/1")
    for _ in range(3):
        node.accept(lane="customer/1")
    node.wall += 500
    node.settle(head, OutcomeKind.RETRY, error="503", due_at=node.wall + 700)
    node.wall += 1000
    shown = node.get("/v1/lanes")
    assert (shown["lanes"], shown["members"], shown["next_cursor"]) == (1, 3, None)
    (lane,) = shown["entries"]
    assert lane.pop("head") == {
        "id": head,
        "seq": node.seq(head),
        "state": "pending",
        "due_at": START + 1200,
        "attempts": 1,
        "error": "503",
        "error_class": "permanent",
        "replay_id": None,
    }
    assert lane == {
        "tenant": "acme",
        "source_id": "orders",
        "sink": 0,
        "sink_type": "http",
        "ordering_key": "customer/1",
        "depth": 4,
        "head_since_at": START,
        "head_age_ms": 1500,
    }


def test_the_next_head_is_young(node: Node) -> None:
    first, second = node.accept(lane="k"), node.accept(lane="k")
    node.wall += 5000
    node.settle(first, OutcomeKind.DELIVERED)
    node.wall += 20
    (lane,) = node.get("/v1/lanes")["entries"]
    assert (lane["head"]["id"], lane["depth"], lane["head_age_ms"]) == (second, 1, 20)
    node.settle(second, OutcomeKind.DELIVERED)
    assert node.get("/v1/lanes") == {"lanes": 0, "members": 0, "entries": [], "next_cursor": None}


def test_lanes_are_paged_and_filtered(node: Node) -> None:
    for tenant in ("acme", "globex", "initech"):
        for source in ("bills", "orders"):
            for key in ("k1", "k2", "k3"):
                node.accept(tenant=tenant, source=source, lane=key, sinks=2)
    found = pages(node)
    assert len(found) == 36
    names = [(lane["tenant"], lane["source_id"], lane["sink"], lane["ordering_key"]) for lane in found]
    assert names == sorted(names)
    assert pages(node, limit=1000) == found
    of_globex = [lane for lane in found if lane["tenant"] == "globex"]
    assert pages(node, "&tenant=globex") == of_globex
    assert pages(node, "&tenant=globex&sink=1") == [lane for lane in of_globex if lane["sink"] == 1]
    assert pages(node, "&source_id=orders") == [lane for lane in found if lane["source_id"] == "orders"]
    assert pages(node, "&tenant=nobody") == []
    assert node.get("/v1/lanes?limit=0")["entries"] == []


def test_a_tenants_token_sees_its_own_lanes(tmp_path: Path) -> None:
    with Node(tmp_path, tokens=tokens()) as node:
        for tenant in ("acme", "globex"):
            node.accept(tenant=tenant, lane="k")
        shown = node.get("/v1/lanes", scope="tenant:globex")
        assert [lane["tenant"] for lane in shown["entries"]] == ["globex"]
        assert (shown["lanes"], shown["members"]) == (None, None)
        assert node.get("/v1/lanes?tenant=acme", scope="tenant:globex")["entries"] == []
        assert len(node.get("/v1/lanes", scope="read")["entries"]) == 2


def test_the_longest_ordering_key_makes_a_cursor_that_is_taken(node: Node) -> None:
    for letter in "abc":
        node.accept(tenant="t" * 64, source="s" * 64, lane=letter * 512)
    assert [lane["ordering_key"][0] for lane in pages(node, limit=1)] == ["a", "b", "c"]


def test_a_page_reads_no_members(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    for _ in range(50):
        node.accept(lane="k")
    read: list[str] = []
    original = Database.keys

    def spy(self: Database, family: str, start: bytes, end: bytes) -> Iterator[bytes]:
        read.append(family)
        return original(self, family, start, end)

    monkeypatch.setattr(Database, "keys", spy)
    assert node.get("/v1/lanes")["entries"][0]["depth"] == 50
    assert "members" not in read


def test_the_scrape_tells_of_lanes_what_the_last_sweep_saw(node: Node) -> None:
    for number in range(5):
        node.accept(lane="long" if number else "short")
    assert scrape(node)["ankusa_lane_oldest_head_seconds"] == 0
    sweep(node)
    node.wall += 2500
    found = scrape(node)
    assert (found["ankusa_lanes"], found["ankusa_lane_member_rows"]) == (2, 3)
    assert (found["ankusa_lane_longest_rows"], found["ankusa_lane_oldest_head_seconds"]) == (4, 2.5)
    assert found["ankusa_lanes_healed_total"] == 0


def _lose_head(node: Node, hook_id: str) -> None:
    seq = node.seq(hook_id)

    async def lose() -> None:
        database = node.parts.log.tables.database
        batch = database.batch()
        batch.delete(keys.row_key(seq, 0), database.handles["rows"])
        database.write(batch)

    node.run(lose)


def test_a_lane_that_lost_its_head_is_shown_so_and_its_healing_is_counted(node: Node) -> None:
    head, member = node.accept(lane="k"), node.accept(lane="k")
    node.accept(lane="k")
    _lose_head(node, head)
    (lane,) = node.get("/v1/lanes")["entries"]
    assert (lane["head"], lane["depth"]) == (None, 3)
    sweep(node)
    (lane,) = node.get("/v1/lanes")["entries"]
    assert (lane["head"]["id"], lane["depth"]) == (member, 2)
    assert scrape(node)["ankusa_lanes_healed_total"] == 1
    sweep(node)
    assert scrape(node)["ankusa_lanes_healed_total"] == 1


def test_a_lane_whose_entry_is_gone_is_healed_too(node: Node) -> None:
    node.accept(lane="k")
    member = node.accept(lane="k")
    key = lane_key("acme", "orders", 0, "http", "k")

    async def lose() -> None:
        database = node.parts.log.tables.database
        batch = database.batch()
        batch.delete(key.encode(), database.handles["lanes"])
        database.write(batch)

    node.run(lose)
    sweep(node)
    (lane,) = node.get("/v1/lanes")["entries"]
    assert (lane["head"]["id"], lane["depth"]) == (member, 1)


def test_members_that_do_not_decode_are_passed_over_and_healed_for_once(node: Node) -> None:
    hooks = [node.accept(lane="k") for _ in range(3)]
    spoiled = node.seq(hooks[1])

    async def spoil() -> None:
        database = node.parts.log.tables.database
        batch = database.batch()
        batch.put(keys.row_key(spoiled, 0), b"\xc1", database.handles["rows"])
        database.write(batch)

    node.run(spoil)
    node.settle(hooks[0], OutcomeKind.DELIVERED)
    (lane,) = node.get("/v1/lanes")["entries"]
    assert lane["head"]["id"] == hooks[2]
    node.settle(hooks[2], OutcomeKind.DELIVERED)
    for _ in range(3):
        sweep(node)
    assert scrape(node)["ankusa_lanes_healed_total"] == 0
    assert node.get("/v1/lanes")["entries"] == []


def test_the_sweep_does_not_walk_over_members_that_have_gone(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """Behind the beginning that it remembers of a long lane: its own reads are counted, and where they begin."""
    hooks = [node.accept(lane="k") for _ in range(SLICE + 60)]
    node.accept(lane="a")
    node.accept(lane="a")
    sweep(node)
    for hook_id in hooks[:50]:
        node.settle(hook_id, OutcomeKind.DELIVERED)
    sweep(node)
    begins: list[bytes] = []
    original = Database.keys

    def spy(self: Database, family: str, start: bytes, end: bytes) -> Iterator[bytes]:
        if family == "members":
            begins.append(start)
        return original(self, family, start, end)

    monkeypatch.setattr(Database, "keys", spy)
    sweep(node)
    lane, first = lane_key("acme", "orders", 0, "http", "k"), node.seq(hooks[51])
    of_lane = [start for start in begins if start.startswith(keys.member_prefix(lane))]
    assert of_lane
    assert min(of_lane) == keys.member_key(lane, first, first)
    monkeypatch.undo()
    for hook_id in hooks[50:]:
        node.settle(hook_id, OutcomeKind.DELIVERED)
    sweep(node)
    later = [node.accept(lane="k") for _ in range(3)]
    monkeypatch.setattr(Database, "keys", spy)
    begins.clear()
    sweep(node)
    assert min(start for start in begins if start.startswith(keys.member_prefix(lane))) > keys.member_key(
        lane, node.seq(hooks[-1]), 0
    )
    _lose_head(node, later[0])
    sweep(node)
    assert {entry["ordering_key"]: entry["depth"] for entry in pages(node)} == {"a": 2, "k": 2}


def test_what_the_sweep_remembers_is_bounded(node: Node) -> None:
    sweeping = node.parts.sweeper.lane_sweep
    for number in range(LONG_LANES + 50):
        sweeping._remember(f"a/s/0/http/{number}", b"key", SLICE + 1)
    assert len(sweeping._begins) == LONG_LANES
    sweeping._remember("a/s/0/http/short", b"key", SLICE)
    assert "a/s/0/http/short" not in sweeping._begins
