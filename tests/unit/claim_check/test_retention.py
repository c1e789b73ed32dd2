"""Retention over a real log: what is deleted and when, and what a row that is left keeps."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest
from obstore.store import MemoryStore

from ankusa.claim_check import pack as packs
from ankusa.claim_check.blobs import BlobError
from ankusa.claim_check.object_blobs import ObjectBlobs
from ankusa.claim_check.reference import pack_id
from ankusa.claim_check.retention import DAY_MS, YOUNG_MS, Retention
from ankusa.claim_check.stats import ClaimCheckStats
from ankusa.core.fold import Accepted
from schemas.records import CheckIn, Job, JobStart, JobState, Outcome, OutcomeBatch, OutcomeKind, Page, Revival, Topic
from streams.local.log import LocalLog
from streams.local.pack_host import PAGE, LocalPackHost
from streams.local.sweeper import Sweeper
from tests.contract.blobs import ScriptedBlobs
from tests.unit.store.entries import AT, hook

DAYS = 7


class Node:
    """A log, a blob store, both sweeps and a clock."""

    def __init__(self, path: Path, retention_days: int | None = DAYS) -> None:
        self.at = AT
        self.path = path
        self.blobs = ScriptedBlobs()
        self._days = retention_days
        self.open()

    def open(self) -> None:
        self.log = LocalLog(self.path, lambda: self.at)
        self.sweeper = Sweeper(self.log)
        self.stats = ClaimCheckStats()
        self.retention = Retention(self.blobs, LocalPackHost(self.log), self._days, self.stats)

    async def hooks(self, *numbers: int) -> list[int]:
        answers = await self.log.commit([hook(f"hook-{number}") for number in numbers], [])
        return [answer.seq for answer in answers if isinstance(answer, Accepted)]

    async def check_in(self, *seqs: int, bits: int = 0) -> str:
        pack = pack_id(self.at, bits)
        await self.blobs.put("acme", pack, [packs.head([1] * len(seqs)), b"x" * len(seqs)])
        await self.log.check_in(CheckIn("acme", pack, self.at, seqs))
        return pack

    def settle(self, seq: int, kind: OutcomeKind, generation: int = 0) -> None:
        self.log.publish(OutcomeBatch((Outcome(seq, 0, generation, kind, self.at, self.at, 1, error="gone"),)))

    async def pass_time(self, days: float) -> None:
        """Move on, and sweep as the node does."""
        self.at += round(days * DAY_MS)
        for sweep in (self.sweeper.hooks, self.sweeper.checkins):
            for _ in sweep(self.log.now()):
                pass
        await self.retention.sweep()

    @property
    def kept(self) -> set[str]:
        return {pack for _, pack in self.blobs.packs}


def run(tmp_path: Path, body: Callable[[Node], Awaitable[None]], retention_days: int | None = DAYS) -> None:
    async def main() -> None:
        node = Node(tmp_path / "store", retention_days)
        try:
            await body(node)
        finally:
            node.log.close()

    asyncio.run(main())


def test_a_pack_goes_when_its_time_is_over_and_not_before(tmp_path: Path) -> None:
    async def body(node: Node) -> None:
        (seq,) = await node.hooks(1)
        old = await node.check_in(seq)
        node.settle(seq, OutcomeKind.DELIVERED)
        await node.pass_time(DAYS - 0.5)
        (late,) = await node.hooks(2)
        new = await node.check_in(late)
        node.settle(late, OutcomeKind.DELIVERED)
        assert node.kept == {old, new}
        await node.pass_time(0.6)
        assert node.kept == {new}
        assert node.stats.deleted == 1

    run(tmp_path, body)


def test_a_row_that_is_left_keeps_the_pack_of_its_hook(tmp_path: Path) -> None:
    async def body(node: Node) -> None:
        seqs = await node.hooks(1, 2, 3)
        pack = await node.check_in(*seqs)
        node.settle(seqs[0], OutcomeKind.DELIVERED)
        node.settle(seqs[2], OutcomeKind.DEAD)
        await node.pass_time(DAYS + 1)
        assert (node.kept, node.stats.kept) == ({pack}, 1)
        node.settle(seqs[1], OutcomeKind.DELIVERED)  # it was pending
        await node.pass_time(1)
        assert node.kept == {pack}
        job = Job(
            id="j", kind="dlq", state=JobState.RUNNING, filter={}, rate=1, max_lag_ms=1, created_at=AT, updated_at=AT
        )
        await node.log.command(JobStart(job))
        node.log.publish(Page("j", node.at, b"", 1, 0, (Revival(seqs[2], 0, 1),)))
        await node.pass_time(1)
        assert node.kept == {pack}
        assert node.log.tables.checked_in(seqs[2]) == (pack, 2)
        node.settle(seqs[2], OutcomeKind.DELIVERED, generation=2)
        await node.pass_time(1)
        assert (node.kept, node.stats.kept) == (set(), 0)

    run(tmp_path, body)


def test_packs_that_no_record_names_go_too(tmp_path: Path) -> None:
    async def body(node: Node) -> None:
        await node.blobs.put("acme", pack_id(node.at, 1), [b"left by a crash"])
        await node.pass_time(1)
        assert len(node.kept) == 1
        await node.pass_time(DAYS)
        assert node.kept == set()

    run(tmp_path, body)


def test_without_retention_nothing_goes(tmp_path: Path) -> None:
    async def body(node: Node) -> None:
        (seq,) = await node.hooks(1)
        pack = await node.check_in(seq)
        node.settle(seq, OutcomeKind.DELIVERED)
        await node.pass_time(10_000)
        assert node.kept == {pack}
        node.retention.start()
        await node.retention.stop()

    run(tmp_path, body, retention_days=None)


def test_without_retention_the_tables_forget_what_no_row_needs(tmp_path: Path) -> None:
    async def body(node: Node) -> None:
        seqs = await node.hooks(1, 2)
        first, second = await node.check_in(seqs[0]), await node.check_in(seqs[1], bits=1)
        node.settle(seqs[0], OutcomeKind.DELIVERED)
        await node.pass_time(0)
        tables = node.log.tables
        assert (tables.checked_in(seqs[0]), tables.has_pack(first)) == ((first, 0), True)
        await node.pass_time(YOUNG_MS * 2 / DAY_MS)
        assert (tables.checked_in(seqs[0]), tables.checked_in(seqs[1])) == (None, (second, 0))
        assert (tables.has_pack(first), tables.has_pack(second)) == (False, True)
        node.settle(seqs[1], OutcomeKind.DELIVERED)
        await node.pass_time(1)
        assert not tables.has_pack(second)
        assert list(tables.database.keys("checkins", b"", b"\xff")) == []
        assert node.sweeper.counts["checkins"] == 2
        assert node.kept == {first, second}

    run(tmp_path, body, retention_days=None)


def test_a_pass_goes_on_over_many_packs_past_those_it_keeps(tmp_path: Path) -> None:
    async def body(node: Node) -> None:
        seqs = await node.hooks(*range(PAGE * 3))
        packs = [await node.check_in(seq, bits=seq) for seq in seqs]
        for seq in seqs[1::2]:
            node.settle(seq, OutcomeKind.DELIVERED)
        await node.pass_time(DAYS + 1)
        assert node.kept == set(packs[::2])
        assert (node.stats.kept, node.stats.deleted) == (len(packs) // 2, len(packs) // 2)
        assert not any(node.log.tables.has_pack(pack) for pack in packs[1::2])

    run(tmp_path, body)


def test_a_pack_that_could_not_be_deleted_is_known_still(tmp_path: Path) -> None:
    class Stubborn(ScriptedBlobs):
        refuse = ""

        async def delete(self, tenant_id: str, pack: str) -> None:
            if pack == self.refuse:
                raise BlobError("access denied")
            await super().delete(tenant_id, pack)

    async def body(node: Node) -> None:
        node.blobs = stubborn = Stubborn()
        node.log.close()
        node.open()
        seqs = await node.hooks(1, 2)
        first, second = [await node.check_in(seq, bits=seq) for seq in seqs]
        for seq in seqs:
            node.settle(seq, OutcomeKind.DELIVERED)
        stubborn.refuse = second
        with pytest.raises(BlobError):
            await node.pass_time(DAYS + 1)
        tables = node.log.tables
        assert (tables.has_pack(first), tables.has_pack(second)) == (False, True)
        stubborn.refuse = ""
        await node.pass_time(0)
        assert node.kept == set()
        assert not tables.has_pack(second)

    run(tmp_path, body)


def test_a_store_that_others_share_keeps_what_no_record_names(tmp_path: Path) -> None:
    async def body(node: Node) -> None:
        shared = ObjectBlobs(MemoryStore())
        (seq,) = await node.hooks(1)
        pack = await node.check_in(seq)
        others = pack_id(node.at, 99)
        for name in (pack, others):
            await shared.put("acme", name, [b"x"])
        node.settle(seq, OutcomeKind.DELIVERED)
        node.at += (DAYS + 1) * DAY_MS
        await Retention(shared, LocalPackHost(node.log), DAYS, node.stats).sweep()
        assert await shared.read("acme", pack, 0, 1) is None
        assert await shared.read("acme", others, 0, 1) == b"x"

    run(tmp_path, body)


def test_a_hook_that_is_checked_in_late_is_swept_all_the_same(tmp_path: Path) -> None:
    async def body(node: Node) -> None:
        first, second = await node.hooks(1, 2)
        await node.check_in(second)
        node.settle(second, OutcomeKind.DELIVERED)
        await node.pass_time(1)
        await node.check_in(first)
        node.settle(first, OutcomeKind.DELIVERED)
        await node.pass_time(1)
        assert list(node.log.tables.database.keys("checkins", b"", b"\xff")) == []

    run(tmp_path, body)


def test_a_store_that_is_away_is_tried_again_at_the_next_pass(tmp_path: Path) -> None:
    class Away(ScriptedBlobs):
        async def older(self, pack: str) -> AsyncIterator[tuple[str, str]]:
            raise BlobError("connection refused")
            yield "", ""

    async def body(node: Node) -> None:
        (seq,) = await node.hooks(1)
        await node.check_in(seq)
        node.settle(seq, OutcomeKind.DELIVERED)
        there, node.blobs = node.blobs, Away()
        node.log.close()
        node.open()
        with pytest.raises(BlobError):
            await node.pass_time(DAYS + 1)
        node.blobs = there
        node.log.close()
        node.open()
        await node.pass_time(0)
        assert node.kept == set()

    run(tmp_path, body)


def test_a_check_in_is_folded_once_and_refolding_changes_nothing(tmp_path: Path) -> None:
    async def body(node: Node) -> None:
        seqs = await node.hooks(1, 2)
        pack = await node.check_in(*seqs)
        tables = node.log.tables

        def families() -> list[list[tuple[bytes, bytes]]]:
            return [list(tables.database.items(name, b"", b"\xff")) for name in ("checkins", "packs", "rows", "due")]

        before = families()
        await node.log.check_in(CheckIn("acme", pack, node.at, tuple(seqs)))
        assert families() == before
        # One that comes late keeps the reference that may have been sent.
        await node.check_in(seqs[1], bits=5)
        assert [tables.checked_in(seq) for seq in seqs] == [(pack, 0), (pack, 1)]
        assert len(list(node.log.read(Topic.OUTCOMES))) == 3

    run(tmp_path, body)


def test_a_check_in_survives_a_reopening(tmp_path: Path) -> None:
    async def body(node: Node) -> None:
        (seq,) = await node.hooks(1)
        pack = await node.check_in(seq)
        node.log.close()
        node.open()
        assert node.log.tables.checked_in(seq) == (pack, 0)
        assert node.log.tables.has_pack(pack)

    run(tmp_path, body)
