"""What of `hooks` and `quarantine` goes, and that hooks of dead rows are in `dead` before."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import pytest

from ankusa.store import keys
from ankusa.store.errors import StoreError
from schemas import records
from schemas.records import Outcome, OutcomeBatch, OutcomeKind, Purge, Topic, frame_hook
from streams.kafka.bodies import Bodies
from streams.kafka.dead_hooks import DeadHooks
from streams.kafka.fleet_log import FleetLog
from streams.kafka.topic_trim import Place, Span
from streams.kafka.trimming import GAIN, SLICE, WAIT_MS, PartitionFloor, Trimming
from tests.unit.kafka.records import PARTITION, Partition, hooks
from tests.unit.store.entries import AT

HOOKS, PEN = ("hooks", PARTITION), ("quarantine", PARTITION)


class DeadTopic:
    """The topic `dead`: a producer of it, and its reader, a record at a time."""

    def __init__(self) -> None:
        self.log: list[tuple[bytes, bytes | None]] = []
        self.refuses = False
        self.starts: list[int] = []
        self.at_once_bytes = self.most_bytes = 0

    def send(self, topic: str, number: int, value: bytes | None, key: bytes, at: int, delivered: Any) -> None:
        assert topic == "dead"
        assert self.refuses or number == PARTITION
        self.at_once_bytes += len(value or b"")
        self.most_bytes = max(self.most_bytes, self.at_once_bytes)
        asyncio.get_running_loop().call_soon(self._deliver, key, value, delivered)

    def _deliver(self, key: bytes, value: bytes | None, delivered: Any) -> None:
        self.at_once_bytes -= len(value or b"")
        if self.refuses:
            delivered(None, "no broker answers")
            return
        self.log.append((key, value))
        delivered(len(self.log) - 1, "")

    async def read(self, number: int, start: int) -> tuple[Sequence[tuple[bytes, bytes | None]], int, bool]:
        self.starts.append(start)
        await asyncio.sleep(0)
        found = self.log[start : start + 1]
        return found, start + len(found), start + len(found) == len(self.log)

    @property
    def compacted(self) -> dict[int, bytes]:
        return {int(key): value for key, value in dict(self.log).items() if value is not None}


class Broker:
    """Where the topics begin, and what was asked of them."""

    def __init__(self, dead: DeadTopic) -> None:
        self.spanned = {HOOKS: Span(0, 0), PEN: Span(0, 0)}
        self.deleted: list[dict[Place, int]] = []
        self.before_at = 0
        self.waited = 0
        """Below this offset hooks are old enough to be copied while they wait."""
        self._dead = dead
        self.copied: set[int] = set()
        """What `dead` had when records were deleted."""

    def spans(self, places: list[Place], before_at: int) -> tuple[dict[Place, Span], StoreError | None]:
        assert {HOOKS, PEN} <= set(places)
        unknown = [place for place in places if place not in self.spanned]
        reason = f"{unknown[0][0]}[{unknown[0][1]}]: its ends cannot be read" if unknown else ""
        refused = StoreError(reason) if unknown else None
        if before_at <= AT - WAIT_MS:
            spans = {place: Span(span.start, max(span.start, self.waited)) for place, span in self.spanned.items()}
            return spans, refused
        self.before_at = before_at
        return dict(self.spanned), refused

    def delete_below(self, floors: Mapping[Place, int]) -> tuple[dict[Place, int], StoreError | None]:
        self.deleted.append(dict(floors))
        self.copied = set(self._dead.compacted)
        for place, floor in floors.items():
            self.spanned[place] = Span(floor, max(floor, self.spanned[place].end))
        return dict(floors), None


class Topics:
    """The reader of `hooks`."""

    def __init__(self) -> None:
        self.records: dict[int, bytes] = {}

    async def read(self, partition: int, offsets: Sequence[int]) -> dict[int, bytes]:
        return {offset: self.records[offset] for offset in offsets if offset in self.records}


class World:
    def __init__(self, path: Path) -> None:
        self.partition = Partition(path)
        self.tables = self.partition.tables
        self.topic, self.reader = DeadTopic(), Topics()
        self.broker = Broker(self.topic)
        self.fleet = FleetLog(cast(Any, None), {}, lambda: AT)
        self.owned = True
        self.begin()

    def begin(self) -> None:
        """The partition comes."""
        self.fleet.add(self.partition.fold)
        self.dead = DeadHooks("dead", self.fleet, cast(Any, self.topic), self.topic.read)
        self.bodies = Bodies(self.fleet, self.reader, self.dead.read_back)
        self.bodies.add(PARTITION)
        self.trimming = Trimming(
            self.fleet, self.bodies, self.dead, self.broker, ("hooks", "quarantine"), self.still_owned
        )
        self.trimming.add(PARTITION)

    async def still_owned(self, number: int) -> bool:
        return self.owned

    def commit(self, *names: str, **details: Any) -> None:
        record = hooks(*names, **details)
        self.reader.records[self.partition.offsets[Topic.HOOKS]] = record
        self.partition.add(Topic.HOOKS, record)
        self.broker.spanned[HOOKS] = Span(self.broker.spanned[HOOKS].start, self.partition.offsets[Topic.HOOKS])

    def settle(
        self, *names: str, kind: OutcomeKind = OutcomeKind.DELIVERED, sink: int = 0, generation: int = 0
    ) -> None:
        items = tuple(
            Outcome(self.partition.seq(name), sink, generation, kind, AT, AT, 1, error="gone") for name in names
        )
        self.partition.add(Topic.OUTCOMES, records.encode(OutcomeBatch(items)))

    def lose_bodies(self) -> None:
        """As a restore leaves the tables."""
        batch = self.tables.database.batch()
        for key in list(self.tables.database.keys("hooks", b"", b"\xff")):
            batch.delete(key, self.tables.database.handles["hooks"])
            self.tables.recent.forget(keys.read_u64(key))
        for key in list(self.tables.database.keys("meta", b"local/dead/", b"local/dead0")):
            batch.delete(key, self.tables.database.handles["meta"])
        batch.delete(b"local/dead-read", self.tables.database.handles["meta"])
        self.tables.database.write(batch)
        self.begin()

    def stored(self, name: str) -> bool:
        return bool(self.tables.database.present("hooks", [keys.u64(self.partition.seq(name))]))


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    world = World(tmp_path / "store")
    yield world
    world.tables.close()


def run(body: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(body())


def test_records_go_up_to_the_first_unfinished_hook(world: World) -> None:
    async def body() -> None:
        world.commit("a", "b")
        world.commit("c")
        world.commit("d", "e")
        world.settle("a", "b", "e")
        await world.trimming.run()
        assert world.broker.deleted == [{HOOKS: 1}]
        assert world.broker.before_at == AT - world.trimming.keep_ms
        await world.trimming.run()  # nothing new is below the floor
        assert len(world.broker.deleted) == 1
        world.settle("c")
        await world.trimming.run()
        assert world.broker.deleted[1:] == [{HOOKS: 2}]  # `d` is in the third commit, and waits
        world.settle("d")
        await world.trimming.run()
        assert world.broker.deleted[2:] == [{HOOKS: 3}]
        assert world.trimming.counts() == {"hooks_topic": 3, "quarantine_topic": 0, "dead_topic": 0}

    run(body)


def test_what_is_not_committed_or_too_young_stays(world: World) -> None:
    async def body() -> None:
        for name in "abc":
            world.commit(name)
        world.settle(*"abc")
        world.broker.spanned[HOOKS] = Span(0, 2)
        await world.trimming.run()
        assert world.broker.deleted == [{HOOKS: 2}]

    run(body)


def test_a_dead_hook_holds_nothing_and_is_kept_in_dead_first(world: World) -> None:
    async def body() -> None:
        world.commit("a", sinks=2)
        world.commit("b")
        world.settle("a", kind=OutcomeKind.DEAD)
        await world.trimming.run()
        assert world.broker.deleted == []  # its second sink is not done
        assert world.topic.compacted == {}
        world.settle("a", kind=OutcomeKind.DEAD, sink=1)
        await world.trimming.run()
        assert world.broker.deleted == [{HOOKS: 1}]
        seq = world.partition.seq("a")
        assert world.broker.copied == {seq}
        found = world.tables.hook(seq)
        assert found is not None
        assert world.topic.compacted[seq] == frame_hook(records.encode(found[0]), found[1])
        await world.trimming.run()
        assert len(world.topic.log) == 1  # once

    run(body)


def test_one_that_waits_for_long_holds_nothing_where_it_holds_back_many(world: World) -> None:
    async def body() -> None:
        world.commit("waits", sinks=2)
        world.settle("waits")
        names = [f"n{number}" for number in range(2 * GAIN)]
        for name in names:
            world.commit(name)
        world.settle(*names)
        await world.trimming.run()
        assert world.broker.deleted == []  # it is young
        world.broker.waited = 1
        await world.trimming.run()
        seq = world.partition.seq("waits")
        assert world.broker.deleted == [{HOOKS: 2 * GAIN + 1}]
        assert world.broker.copied == {seq}
        world.reader.records.clear()
        world.lose_bodies()  # the next owner has it of `dead`
        fetched = asyncio.Event()
        world.bodies.fetch(seq, fetched.set)
        await asyncio.wait_for(fetched.wait(), 30)
        assert world.stored("waits")
        assert not world.bodies.missing(seq)
        world.settle("waits", sink=1)
        await world.trimming.run()
        assert world.topic.compacted == {}

    run(body)


def test_those_that_wait_are_not_copied_where_little_would_go(world: World) -> None:
    """As when a sink has been down for long: all its hooks would be written twice."""

    async def body() -> None:
        for number in range(4 * GAIN):
            world.commit(f"n{number}")
        world.settle("n0", *(f"n{number}" for number in range(4 * GAIN) if number % (GAIN - 1)))
        world.broker.waited = 4 * GAIN
        await world.trimming.run()
        assert world.broker.deleted == [{HOOKS: GAIN - 1}]
        assert world.topic.log == []
        world.settle(f"n{GAIN - 1}")  # three are left of 40, and hold back 22 from the first of them on
        await world.trimming.run()
        assert world.broker.deleted[1:] == [{HOOKS: 2 * (GAIN - 1)}]
        assert world.topic.log == []

    run(body)


def test_a_kept_disk_reads_dead_on_from_where_it_was(world: World) -> None:
    async def body() -> None:
        world.commit("a", "b", "c")
        world.settle("a", kind=OutcomeKind.DEAD)
        await world.trimming.run()
        world.begin()
        await world.trimming.run()
        assert world.topic.starts == [0, 0]  # what it wrote itself it reads once
        world.topic.log.append((str(world.partition.seq("c")).encode(), b"what another owner wrote"))
        world.settle("b", "c")  # and nobody needs
        world.begin()
        await world.trimming.run()
        assert world.topic.starts[-1] == 1
        assert set(world.topic.compacted) == {world.partition.seq("a")}
        # One that is missing is looked for from the beginning.
        world.reader.records.clear()
        batch = world.tables.database.batch()
        seq = world.partition.seq("a")
        batch.delete(keys.u64(seq), world.tables.database.handles["hooks"])
        world.tables.database.write(batch)
        world.tables.recent.forget(seq)
        world.begin()
        fetched = asyncio.Event()
        world.bodies.fetch(seq, fetched.set)
        await asyncio.wait_for(fetched.wait(), 30)
        assert 0 in world.topic.starts[-5:]
        assert world.stored("a")

    run(body)


def test_one_that_cannot_be_kept_in_dead_is_not_deleted(world: World) -> None:
    async def body() -> None:
        world.commit("a")
        world.settle("a", kind=OutcomeKind.DEAD)
        world.topic.refuses = True
        with pytest.raises(StoreError, match="no broker answers"):
            await world.trimming.run()
        assert world.broker.deleted == []
        world.topic.refuses = False
        await world.trimming.run()
        assert world.broker.deleted == [{HOOKS: 1}]
        assert set(world.topic.compacted) == {world.partition.seq("a")}

    run(body)


@pytest.mark.parametrize("refused", ["read", "ends", "copy"])
def test_what_one_partition_refuses_stops_no_other(world: World, tmp_path: Path, refused: str) -> None:
    """Its dead hooks cannot be read, nobody tells its ends, its dead hooks cannot be copied. It is asked first."""
    other = Partition(tmp_path / "other", PARTITION - 2)

    async def body() -> None:
        world.commit("a")
        world.settle("a")
        if refused != "read":
            world.fleet.add(other.fold)
        if refused == "copy":
            for place in (("hooks", other.number), ("quarantine", other.number)):
                world.broker.spanned[place] = Span(0, 1)
            other.add(Topic.HOOKS, hooks("b"))
            outcome = Outcome(other.seq("b"), 0, 0, OutcomeKind.DEAD, AT, AT, 1, error="gone")
            other.add(Topic.OUTCOMES, records.encode(OutcomeBatch((outcome,))))
            world.topic.refuses = True
        floors = world.trimming._floors
        world.trimming.add(other.number)
        floors[PARTITION] = floors.pop(PARTITION)
        words = {"read": r"partition 5", "ends": r"hooks\[5\]: its ends", "copy": "no broker answers"}[refused]
        with pytest.raises(StoreError, match=words):
            await world.trimming.run()
        assert world.broker.deleted == [{HOOKS: 1}]
        assert world.trimming.counts()["hooks_topic"] == 1

    run(body)
    other.tables.close()


def test_nothing_is_deleted_of_a_partition_that_is_another_s(world: World) -> None:
    async def body() -> None:
        world.commit("a")
        world.settle("a")
        for _ in range(5):
            world.partition.add(Topic.QUARANTINE, records.encode(Purge(AT, ())))
        world.broker.spanned[PEN] = Span(0, 5)
        world.owned = False
        await world.trimming.run()
        assert world.broker.deleted == []
        world.owned = True
        await world.trimming.run()
        assert world.broker.deleted == [{HOOKS: 1, PEN: 5}]
        world.trimming.remove(PARTITION)
        await world.trimming.run()
        assert len(world.broker.deleted) == 1

    run(body)


def test_dead_lets_go_of_a_hook_when_its_last_row_is_gone(world: World) -> None:
    async def body() -> None:
        world.commit("a", "b")
        world.settle("a", "b", kind=OutcomeKind.DEAD)
        await world.trimming.run()
        a, b = world.partition.seq("a"), world.partition.seq("b")
        assert set(world.topic.compacted) == {a, b}
        _replay(world, a)
        await world.trimming.run()
        assert set(world.topic.compacted) == {a, b}  # a replayed row needs it
        row = world.tables.row(a, 0)
        assert row is not None
        world.settle("a", generation=row.generation)
        await world.trimming.run()
        assert set(world.topic.compacted) == {b}
        assert world.trimming.counts()["dead_topic"] == 1

    run(body)


def _replay(world: World, seq: int) -> None:
    row = world.tables.row(seq, 0)
    assert row is not None
    job = records.Job(
        id="j",
        kind="dlq",
        state=records.JobState.RUNNING,
        filter={},
        rate=10,
        max_lag_ms=0,
        created_at=AT,
        updated_at=AT,
    )
    world.partition.add(Topic.REPLAYS, records.encode(records.JobStart(job)))
    page = records.Page("j", AT, b"", 1, 0, (records.Revival(seq, 0, row.generation),))
    world.partition.add(Topic.OUTCOMES, records.encode(page))
    after = world.tables.row(seq, 0)
    assert after is not None
    assert after.state is records.RowState.PENDING


class TestRestored:
    """Tables that came without their hooks, after the topic let go of them."""

    @pytest.fixture
    def restored(self, world: World) -> World:
        async def body() -> None:
            world.commit("a", "b")
            world.settle("a", kind=OutcomeKind.DEAD)
            world.settle("b", kind=OutcomeKind.DEAD)
            await world.trimming.run()

        run(body)
        world.reader.records.clear()
        return world

    def test_have_dead_hooks_again_with_the_first_pass(self, restored: World) -> None:
        async def body() -> None:
            restored.lose_bodies()
            assert not restored.stored("a")
            await restored.trimming.run()
            assert restored.stored("a")
            assert restored.stored("b")
            assert set(restored.topic.compacted) == {restored.partition.seq(name) for name in "ab"}

        run(body)

    def test_have_one_at_once_that_is_wanted(self, restored: World) -> None:
        async def body() -> None:
            restored.lose_bodies()
            seq, fetched = restored.partition.seq("a"), asyncio.Event()
            restored.bodies.fetch(seq, fetched.set)
            await asyncio.wait_for(fetched.wait(), 30)
            assert restored.stored("a")
            assert not restored.bodies.missing(seq)

        run(body)

    def test_have_one_that_an_owner_of_before_kept_after_they_were_read(self, restored: World) -> None:
        async def body() -> None:
            late = restored.topic.log.pop()
            restored.lose_bodies()
            await restored.dead.read_back(PARTITION)
            seq = int(late[0])
            assert not restored.tables.database.present("hooks", [keys.u64(seq)])
            restored.topic.log.append(late)
            fetched = asyncio.Event()
            restored.bodies.fetch(seq, fetched.set)
            await asyncio.wait_for(fetched.wait(), 30)
            assert restored.tables.database.present("hooks", [keys.u64(seq)])

        run(body)

    def test_drop_what_was_settled_meanwhile(self, restored: World) -> None:
        async def body() -> None:
            a, b = restored.partition.seq("a"), restored.partition.seq("b")
            restored.lose_bodies()
            restored.topic.log.append((b"123", b"of a row that is gone"))
            restored.topic.log.append((b"124", b"gone, and let go of"))
            restored.topic.log.append((b"124", None))
            await restored.trimming.run()
            assert set(restored.topic.compacted) == {a, b}
            assert [key for key, value in restored.topic.log if value is None] == [b"124", b"123"]

        run(body)

    def test_fetch_a_dead_hook_before_it_is_kept(self, world: World) -> None:
        async def body() -> None:
            world.commit("a")
            world.settle("a", kind=OutcomeKind.DEAD)
            world.lose_bodies()
            await world.trimming.run()
            assert set(world.topic.compacted) == {world.partition.seq("a")}
            assert world.broker.deleted == [{HOOKS: 1}]

        run(body)


def test_many_rows_are_walked_in_slices_and_copied_some_megabytes_at_a_time(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def body() -> None:
        monkeypatch.setattr("streams.kafka.trimming.COPY_BYTES", 60_000)
        names = [f"n{number}" for number in range(100)]
        world.commit(*names, sinks=3, body=b"x" * 10_000)
        world.commit("last")
        for sink in range(3):
            world.settle(*names, kind=OutcomeKind.DEAD, sink=sink)
        assert len(names) * 3 > SLICE
        floor = PartitionFloor(PARTITION, world.fleet, world.bodies, world.dead)
        assert await floor.up_to(Span(0, 2), 0) == 1
        assert set(world.topic.compacted) == {world.partition.seq(name) for name in names}
        assert 30_000 < world.topic.most_bytes <= 60_000
        world.settle("last")
        assert await floor.up_to(Span(0, 2), 0) == 2

    run(body)


def test_nothing_is_deleted_that_is_not_folded(world: World) -> None:
    """The group has committed more than this worker's tables have: by another hand, or before a changelog was lost."""

    async def body() -> None:
        for name in "abcde":
            world.commit(name)
        world.settle(*"abcde")
        world.broker.spanned[HOOKS] = Span(0, 100)
        world.broker.spanned[PEN] = Span(0, 50)
        await world.trimming.run()
        assert world.broker.deleted == [{HOOKS: 5}]

    run(body)


def test_an_owner_of_before_lets_go_of_nothing_in_dead(world: World) -> None:
    """What its tables know nothing of may be what the next owner has kept."""

    async def body() -> None:
        world.commit("a")
        world.topic.log.append((str(world.partition.seq("a") + (1 << 20)).encode(), b"kept by the next owner"))
        world.owned = False
        await world.trimming.run()
        assert all(value is not None for _, value in world.topic.log)

    run(body)
