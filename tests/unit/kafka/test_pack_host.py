"""Retention over the partitions of a worker: each pack is its partition's, and what goes is in the changelog too."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import cast

import pytest

from ankusa.claim_check.reference import pack_id
from ankusa.claim_check.retention import DAY_MS, YOUNG_MS, Retention
from ankusa.claim_check.stats import ClaimCheckStats
from ankusa.dispatch.ports import Written
from ankusa.store.errors import StoreError
from ankusa.store.tables import Tables
from schemas import records
from schemas.records import CheckIn, Outcome, OutcomeBatch, OutcomeKind, PackExpiry, Topic
from streams.kafka.changelog import Entry
from streams.kafka.fleet_log import FleetLog
from streams.kafka.folding import Folded, PartitionFold
from streams.kafka.pack_host import PAGE, KafkaPackHost
from streams.kafka.restoring import Restore, owner_entry
from tests.contract.blobs import ScriptedBlobs
from tests.property.refold import content
from tests.unit.kafka.records import Partition, hooks
from tests.unit.store.entries import AT

NUMBERS = (3, 5)
DAYS = 7


class Shared(ScriptedBlobs):
    """A store of a fleet's: nobody can tell whose a pack is that nobody here knows."""

    async def older(self, pack: str) -> AsyncIterator[tuple[str, str]]:
        for found in ():
            yield found


class Recorded(Partition):
    """A partition that keeps its changelog."""

    def __init__(self, path: Path, number: int) -> None:
        self.changelog: list[Entry] = [owner_entry(0, "first")]
        super().__init__(path, number)

    def add(self, topic: Topic, value: bytes | None, at: int = AT) -> Folded:
        folded = super().add(topic, value, at)
        self.changelog += folded.entries
        return folded


class World:
    """Two partitions of one worker, each with hooks a and b, and a store of packs. Implements what a pack host asks of
    a fleet log: what is published is folded at once, or with `holds` when a test says so."""

    def __init__(self, path: Path) -> None:
        self.at = AT
        self.holds = False
        self.published: list[tuple[int, bytes]] = []
        self.recorded = {number: Recorded(path / str(number), number) for number in NUMBERS}
        self.partitions: dict[int, PartitionFold] = {}
        for number, partition in self.recorded.items():
            partition.add(Topic.HOOKS, hooks(f"{number}-a", f"{number}-b"))
            self.partitions[number] = partition.fold
        self.blobs = Shared()
        self.stats = ClaimCheckStats()
        self.host = KafkaPackHost(cast(FleetLog, self))

    def now(self) -> int:
        return self.at

    def publish(self, topic: Topic, number: int, value: bytes, written: Written) -> None:
        assert topic is Topic.OUTCOMES
        self.published.append((number, value))
        if not self.holds:
            self.recorded[number].add(topic, value)
        written(None)

    def seq(self, name: str) -> int:
        return self.recorded[int(name[0])].seq(name)

    def check_in(self, *names: str, bits: int = 0) -> str:
        pack = pack_id(self.at, bits)
        self.blobs.packs["acme", pack] = b"stored"
        seqs = tuple(self.seq(name) for name in names)
        self.recorded[int(names[0][0])].add(Topic.OUTCOMES, records.encode(CheckIn("acme", pack, self.at, seqs)))
        return pack

    def settle(self, *names: str, kind: OutcomeKind = OutcomeKind.DELIVERED) -> None:
        for name in names:
            outcome = Outcome(self.seq(name), 0, 0, kind, self.at, self.at, 1, error="gone")
            self.recorded[int(name[0])].add(Topic.OUTCOMES, records.encode(OutcomeBatch((outcome,))))

    def sweep(self, *, retention_days: int | None = DAYS, after_ms: int = (DAYS + 1) * DAY_MS) -> None:
        self.at += after_ms
        asyncio.run(Retention(self.blobs, self.host, retention_days, self.stats).sweep())

    @property
    def stored(self) -> set[str]:
        return {pack for _, pack in self.blobs.packs}


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    world = World(tmp_path)
    yield world
    for partition in world.recorded.values():
        partition.tables.close()


def test_packs_of_all_partitions_go_in_the_order_of_their_age_and_by_their_own_records(world: World) -> None:
    names = ["5-a", "3-a", "5-b", "3-b"]
    packs = [world.check_in(name, bits=bits) for bits, name in enumerate(names)]
    world.settle(*names)
    assert [known.pack for known in world.host.packs("", "Z")] == packs
    world.sweep()
    assert (world.stored, world.stats.deleted) == (set(), 4)
    assert world.published == [
        (3, records.encode(PackExpiry((packs[1], packs[3])))),
        (5, records.encode(PackExpiry((packs[0], packs[2])))),
    ]
    assert world.host.packs("", "Z") == []


def test_a_row_that_is_left_keeps_the_pack_of_its_hook(world: World) -> None:
    pack = world.check_in("3-a", "3-b")
    world.settle("3-a")
    world.settle("3-b", kind=OutcomeKind.DEAD)
    world.sweep()
    assert (world.stored, world.stats.kept, world.published) == ({pack}, 1, [])


def test_without_a_time_packs_stay_and_are_known_no_longer(world: World) -> None:
    young = world.check_in("5-a")
    world.settle("5-a")
    world.sweep(retention_days=None, after_ms=YOUNG_MS - 1)
    assert world.host.has_pack(young)
    world.sweep(retention_days=None, after_ms=2)
    assert not world.host.has_pack(young)
    assert world.recorded[5].tables.checked_in(world.seq("5-a")) is None
    assert world.stored == {young}


def test_a_pass_goes_on_over_more_packs_than_a_page(world: World) -> None:
    many = [world.check_in("3-a" if bits % 3 else "5-a", bits=bits) for bits in range(PAGE * 3 + 1)]
    world.settle("3-a")
    world.sweep()
    assert world.stored == {pack for bits, pack in enumerate(many) if bits % 3 == 0}


def test_a_pack_of_a_partition_that_has_gone_is_left_to_its_next_owner(world: World) -> None:
    kept, gone = world.check_in("3-a", bits=1), world.check_in("5-a", bits=2)
    world.settle("3-a", "5-a")
    del world.partitions[3]
    world.sweep()
    assert world.stored == {kept}
    assert [number for number, _ in world.published] == [5]
    assert not world.host.has_pack(gone)
    assert world.recorded[3].tables.has_pack(kept)


def test_a_worker_that_dies_before_the_log_has_it_leaves_it_to_the_next_pass(world: World) -> None:
    pack = world.check_in("3-a")
    world.settle("3-a")
    world.holds = True  # the pack is deleted, and its record is lost
    world.sweep()
    assert (world.stored, world.host.has_pack(pack)) == (set(), True)
    world.holds = False
    world.sweep(after_ms=0)
    assert not world.host.has_pack(pack)


def test_a_log_that_refuses_leaves_packs_known(world: World) -> None:
    pack = world.check_in("3-a")
    world.settle("3-a")

    def refuse(*_: object) -> None:
        raise StoreError("too much waits for a broker")

    world.publish = refuse  # type: ignore[assignment, method-assign]
    with pytest.raises(StoreError, match="too much waits"):
        world.sweep()
    assert world.host.has_pack(pack)


def test_an_empty_disk_gets_check_ins_and_what_expired_from_the_changelog(world: World, tmp_path: Path) -> None:
    gone, kept = world.check_in("3-a", bits=1), world.check_in("3-b", bits=2)
    world.settle("3-a")
    world.sweep()
    restore = Restore(tmp_path / "new", Tables, 0)
    assert restore.take(world.recorded[3].changelog, len(world.recorded[3].changelog))
    tables = restore.finish("another")
    try:
        assert (tables.has_pack(gone), tables.checked_in(world.seq("3-a"))) == (False, None)
        assert tables.pack(kept) == CheckIn("acme", kept, AT, (world.seq("3-b"),))
        assert tables.checked_in(world.seq("3-b")) == (kept, 0)
        live, found = content(world.recorded[3].tables), content(tables)
        for family in ("packs", "checkins", "rows"):
            assert found[family] == live[family]
    finally:
        tables.close()
