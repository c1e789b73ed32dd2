"""The sweeper over a real log: what goes, what stays, and that it walks nothing twice."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest

from ankusa import lifecycle
from ankusa.core.fold import Accepted
from schemas.records import ChangeAction, ChangeKind, Outcome, OutcomeBatch, OutcomeKind, SourceChange, Topic
from streams.local import sweeper as sweeping
from streams.local.log import LocalLog
from streams.local.sweeper import HISTORY_KEEP_MS, SETTLED_KEEP_MS, Sweeper
from tests.unit.store.entries import AT, hook

SWEEPS = ("dedupe", "hooks", "attempts", "ids", "records")


class Node:
    """A log, its sweeper and a clock."""

    def __init__(self, path: Path) -> None:
        self.at = AT
        self.log = LocalLog(path, lambda: self.at)
        self.sweeper = Sweeper(self.log)
        self.seqs: dict[str, int] = {}

    async def commit(self, *ids: str, dedupe: str | None = None) -> None:
        for answer in await self.log.commit([hook(hook_id, dedupe=dedupe) for hook_id in ids], []):
            assert isinstance(answer, Accepted)
            self.seqs[answer.id] = answer.seq

    def settle(self, hook_id: str, kind: OutcomeKind, *, generation: int = 0, due_at: int = 0) -> None:
        attempt = generation + 1
        outcome = Outcome(self.seqs[hook_id], 0, generation, kind, self.at, self.at, attempt, due_at, "error")
        self.log.publish(OutcomeBatch((outcome,)))

    def sweep(self, *names: str) -> None:
        for name in names or SWEEPS:
            for _ in getattr(self.sweeper, name)(self.log.now()):
                pass

    def has(self, hook_id: str) -> tuple[bool, bool, bool]:
        """Whether the hook's body, its history and its id are stored."""
        tables, seq = self.log.tables, self.seqs[hook_id]
        stored = tables.database.get("hooks", seq.to_bytes(8, "big")) is not None
        return stored, bool(tables.attempts_of(seq)), tables.seq_of(hook_id) is not None


def run(tmp_path: Path, body: Callable[[Node], Awaitable[None]]) -> None:
    async def main() -> None:
        node = Node(tmp_path / "store")
        try:
            await body(node)
        finally:
            node.log.close()

    asyncio.run(main())


def test_a_delivered_hook_keeps_its_body_for_a_minute_and_its_history_for_a_week(tmp_path: Path) -> None:
    async def body(node: Node) -> None:
        await node.commit("a")
        node.settle("a", OutcomeKind.DELIVERED)
        node.at += SETTLED_KEEP_MS
        node.sweep()
        assert node.has("a") == (True, True, True)
        node.at += 1
        node.sweep()
        assert node.has("a") == (False, True, True)
        node.at = AT + HISTORY_KEEP_MS
        node.sweep()
        assert node.has("a") == (False, True, True)
        node.at += 1
        node.sweep()
        assert node.has("a") == (False, False, False)
        assert list(node.log.tables.database.keys("log", b"", b"\xff")) == []

    run(tmp_path, body)


@pytest.mark.parametrize("kind", [None, OutcomeKind.RETRY, OutcomeKind.DEAD])
def test_a_hook_with_a_row_left_never_goes_however_old(tmp_path: Path, kind: OutcomeKind | None) -> None:
    async def body(node: Node) -> None:
        await node.commit("before", "kept", "after")
        node.settle("before", OutcomeKind.DELIVERED)
        node.settle("after", OutcomeKind.DELIVERED)
        if kind is not None:
            node.settle("kept", kind, due_at=AT + 1000)
        for _ in range(4):
            node.at += HISTORY_KEEP_MS
            node.sweep()
        assert node.has("kept") == (True, kind is not None, True)
        assert node.has("before") == node.has("after") == (False, False, False)
        assert sum(node.log.tables.counts.total()) == 1

    run(tmp_path, body)


def test_what_a_row_leaves_when_it_settles_late_goes_too(tmp_path: Path) -> None:
    """Its record is long dropped, and passes have gone by since."""

    async def body(node: Node) -> None:
        await node.commit("early", "late", "other")
        node.settle("other", OutcomeKind.DELIVERED)
        node.settle("early", OutcomeKind.DELIVERED)
        for generation in range(3):
            node.at += HISTORY_KEEP_MS
            node.sweep()
            node.settle("late", OutcomeKind.RETRY, generation=generation, due_at=node.at + 1)
        node.sweep()
        node.settle("late", OutcomeKind.DELIVERED, generation=3)
        for _ in range(2):
            node.at += HISTORY_KEEP_MS + 1
            node.sweep()
        assert node.has("late") == (False, False, False)
        for family in ("hooks", "attempts", "ids", "rows", "due", "dead", "log"):
            assert list(node.log.tables.database.keys(family, b"", b"\xff")) == []

    run(tmp_path, body)


def test_a_dedupe_key_goes_when_it_has_expired_and_one_claimed_again_stays(tmp_path: Path) -> None:
    async def body(node: Node) -> None:
        await node.commit("a", dedupe="evt-a")
        await node.commit("b", dedupe="evt-b")
        node.at += 60_000
        await node.commit("b-again", dedupe="evt-b")
        node.at += 1
        node.sweep("dedupe")
        database = node.log.tables.database
        assert list(database.keys("dedupe", b"", b"\xff")) == [b"acme\0orders\0evt-b"]
        assert len(list(database.keys("expiry", b"", b"\xff"))) == 1
        node.at += 60_000
        node.sweep("dedupe")
        assert list(database.keys("dedupe", b"", b"\xff")) == list(database.keys("expiry", b"", b"\xff")) == []

    run(tmp_path, body)


def test_records_go_by_age_and_what_is_newer_is_still_read(tmp_path: Path) -> None:
    async def body(node: Node) -> None:
        await node.commit("old")
        node.at += HISTORY_KEEP_MS
        await node.commit("new")
        node.sweep("records")
        assert len(list(node.log.read(Topic.HOOKS))) == 2
        node.at += 1
        node.sweep("records")
        ((offset, at, _),) = list(node.log.read(Topic.HOOKS))
        assert (offset, at) == (node.log.next_offset - 1, AT + HISTORY_KEEP_MS)
        assert node.log.offset_at(Topic.HOOKS, 0) == offset

    run(tmp_path, body)


def test_the_offset_of_a_time_after_every_record_is_the_next_one(tmp_path: Path) -> None:
    async def body(node: Node) -> None:
        assert node.log.offset_at(Topic.HOOKS, AT) == node.log.next_offset
        await node.commit("a")
        node.settle("a", OutcomeKind.DELIVERED)
        assert node.log.offset_at(Topic.HOOKS, AT) == 1
        assert node.log.offset_at(Topic.HOOKS, AT + 1) == node.log.next_offset == 3
        assert node.log.offset_at(Topic.REPLAYS, 0) == node.log.next_offset

    run(tmp_path, body)


def test_a_pass_starts_where_the_last_one_found_something_to_keep(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sweeping, "SLICE", 7)

    async def body(node: Node) -> None:
        ids = [f"{number:04d}" for number in range(100)]
        await node.commit(*ids)
        for hook_id in ids[:80]:
            node.settle(hook_id, OutcomeKind.DELIVERED)
        node.at += HISTORY_KEEP_MS + 1
        node.sweep()
        assert node.sweeper.counts["hooks"] == node.sweeper.counts["ids"] == 80
        starts: list[tuple[str, bytes]] = []
        keys = node.log.tables.database.keys

        def spied(family: str, start: bytes, end: bytes) -> Iterator[bytes]:
            starts.append((family, start))
            return keys(family, start, end)

        monkeypatch.setattr(node.log.tables.database, "keys", spied)
        node.sweep()
        first = dict(reversed(starts))
        assert first["hooks"] == node.seqs["0080"].to_bytes(8, "big")
        assert first["ids"] == b"0080"
        assert first["expiry"] >= (node.at).to_bytes(8, "big")

    run(tmp_path, body)


def test_ids_are_not_read_past_the_old_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweeping, "SLICE", 10)

    async def body(node: Node) -> None:
        await node.commit(*(f"{number:04d}" for number in range(100)))
        assert len(list(node.sweeper.ids(node.log.now()))) == 1

    run(tmp_path, body)


def test_sweeping_goes_on_after_a_store_that_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweeping, "PASS_MS", 1)
    monkeypatch.setattr(sweeping, "PAUSE_MS", 0)

    async def body(node: Node) -> None:
        await node.commit("a")
        node.settle("a", OutcomeKind.DELIVERED)
        node.at += SETTLED_KEEP_MS + 1
        node.log.fail("disk gone")
        node.sweeper.start()
        await asyncio.sleep(0.02)
        assert node.has("a")[0]
        node.log.recover()
        async with asyncio.timeout(20):
            while node.has("a")[0]:
                await asyncio.sleep(0.001)
        await node.sweeper.stop()

    run(tmp_path, body)


def test_the_audit_trail_outlives_the_changes_it_tells_of(tmp_path: Path) -> None:
    async def body(node: Node) -> None:
        change = SourceChange("acme.orders", "acme", "orders", AT, AT, b"spec")
        await node.log.change(change, lifecycle.change(ChangeKind.SOURCE, "acme.orders", ChangeAction.CREATED, AT, {}))
        node.at = AT + HISTORY_KEEP_MS + 1
        node.sweep("records")
        assert [len(list(node.log.read(topic))) for topic in (Topic.SOURCES, Topic.AUDIT)] == [0, 1]
        assert list(node.log.tables.set_up("sources")) == ["acme.orders"]
        node.at = AT + lifecycle.KEEP_MS + 1
        node.sweep("records")
        assert list(node.log.read(Topic.AUDIT)) == []

    run(tmp_path, body)
