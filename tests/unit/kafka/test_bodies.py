"""Hooks that tables were restored without: fetched in order, kept, and told apart from those that are gone."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest

from ankusa.store import keys
from ankusa.store.errors import StoreError
from schemas.records import Topic
from streams.kafka import places
from streams.kafka.bodies import ROUND_RECORDS, Bodies
from streams.kafka.fleet_log import FleetLog
from tests.unit.kafka.records import PARTITION, Partition, hooks


class FakeReader:
    """The topic's records by offset; `refuses` is how often it does not answer first."""

    def __init__(self) -> None:
        self.records: dict[int, bytes] = {}
        self.asked: list[Sequence[int]] = []
        self.refuses = 0

    async def read(self, partition: int, offsets: Sequence[int]) -> dict[int, bytes]:
        assert partition == PARTITION
        self.asked.append(offsets)
        if self.refuses:
            self.refuses -= 1
            raise StoreError("no broker answers")
        return {offset: self.records[offset] for offset in offsets if offset in self.records}


class World:
    """Three commits of two hooks each, folded, and their hooks taken out of the tables, as a restore leaves them."""

    def __init__(self, path: Path, commits: int = 3) -> None:
        self.partition = Partition(path)
        self.reader = FakeReader()
        for number in range(commits):
            record = self.reader.records[number] = hooks(f"{number}-a", f"{number}-b")
            self.partition.add(Topic.HOOKS, record)
        self.tables = self.partition.tables
        batch = self.tables.database.batch()
        for number in range(commits):
            for name in ("a", "b"):
                seq = self.seq(number, name)
                batch.delete(keys.u64(seq), self.tables.database.handles["hooks"])
                self.tables.recent.forget(seq)
        self.tables.database.write(batch)
        self.fleet = FleetLog(cast(Any, None), {}, lambda: 0)
        self.fleet.add(self.partition.fold)
        self.bodies = Bodies(self.fleet, self.reader)
        self.bodies.add(PARTITION)
        self.fetched: list[int] = []

    def seq(self, number: int, name: str) -> int:
        return self.partition.seq(f"{number}-{name}")

    def fetch(self, seq: int) -> None:
        assert not self.bodies.stored(self.tables, seq)
        self.bodies.fetch(seq, partial(self.fetched.append, seq))

    async def settle(self) -> None:
        while self.bodies._tasks:
            await asyncio.gather(*self.bodies._tasks.values())


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    world = World(tmp_path / "store")
    yield world
    world.tables.close()


def run(body: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(body())


def test_what_one_scan_asks_for_is_read_in_one_go_in_the_order_of_offsets(world: World) -> None:
    async def body() -> None:
        wanted = [world.seq(2, "a"), world.seq(0, "b"), world.seq(2, "b")]
        for seq in wanted:
            world.fetch(seq)
        await world.settle()
        assert world.reader.asked == [[0, 2]]  # ahead of the last there is nothing
        assert sorted(world.fetched) == sorted(wanted)
        found = world.tables.hook(wanted[1])
        assert found is not None
        assert (found[0].id, found[1]) == ("0-b", b"{}")
        # What else was in a record and has a row is there now as well.
        assert world.bodies.stored(world.tables, world.seq(0, "a"))
        assert not world.bodies.stored(world.tables, world.seq(1, "a"))

    run(body)


def test_what_rows_will_ask_for_next_is_read_along(tmp_path: Path) -> None:
    async def body() -> None:
        world = World(tmp_path / "store", commits=8)
        world.bodies._put(world.tables, {world.seq(4, name): b"\0\0\0\0" for name in ("a", "b")})  # at hand already
        seq = world.seq(1, "b")
        world.fetch(seq)
        await world.settle()
        assert world.reader.asked == [[1, 2, 3, 5, 6, 7]]
        assert world.fetched == [seq]
        assert all(world.bodies.stored(world.tables, world.seq(number, "a")) for number in range(1, 8))
        assert not world.bodies.stored(world.tables, world.seq(0, "a"))
        world.tables.close()

    run(body)


def test_a_hook_whose_record_is_gone_is_known_as_missing(world: World) -> None:
    async def body() -> None:
        del world.reader.records[1]
        gone, there = world.seq(1, "a"), world.seq(0, "a")
        world.fetch(gone)
        world.fetch(there)
        await world.settle()
        assert sorted(world.fetched) == sorted([gone, there])
        assert world.bodies.missing(gone)
        assert not world.bodies.missing(there)

    run(body)


def test_a_broker_that_does_not_answer_makes_nothing_missing(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    async def body() -> None:
        monkeypatch.setattr("streams.kafka.bodies.AGAIN_S", 0)
        world.reader.refuses = 3
        seq = world.seq(0, "a")
        world.fetch(seq)
        await world.settle()
        assert len(world.reader.asked) == 4
        assert world.fetched == [seq]
        assert not world.bodies.missing(seq)

    run(body)


def test_a_partition_that_goes_takes_who_waits_with_it(world: World) -> None:
    async def body() -> None:
        world.fetch(world.seq(0, "a"))
        world.fleet.leave(PARTITION)
        world.bodies.remove(PARTITION)
        for _ in range(5):
            await asyncio.sleep(0)
        assert world.fetched == []
        assert not world.bodies._tasks

    run(body)


def test_a_hook_that_came_after_the_partition_is_at_hand_without_a_look(world: World) -> None:
    world.partition.add(Topic.HOOKS, hooks("new"))
    assert world.bodies.stored(world.tables, world.partition.seq("new"))


def test_many_are_read_in_rounds(tmp_path: Path) -> None:
    async def body() -> None:
        world = World(tmp_path / "store", commits=ROUND_RECORDS + 5)
        for number in range(ROUND_RECORDS + 5):
            world.fetch(world.seq(number, "a"))
        await world.settle()
        assert [len(asked) for asked in world.reader.asked] == [ROUND_RECORDS, 5]
        assert len(world.fetched) == ROUND_RECORDS + 5
        assert all(places.partition_of(seq) == PARTITION for seq in world.fetched)
        world.tables.close()

    run(body)
