"""What the dispatcher is told over several partitions, and what becomes of what it publishes."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, cast

import pytest

from ankusa.dispatch.claims import Claims
from ankusa.store import keys
from ankusa.store.errors import StoreError
from schemas import records
from schemas.config import Dispatch
from schemas.records import (
    Breaker,
    BreakerMove,
    BreakerState,
    CheckIn,
    Outcome,
    OutcomeBatch,
    OutcomeKind,
    RowState,
    Topic,
)
from streams.kafka.bodies import Bodies
from streams.kafka.dispatch_host import REFUSED_MS, KafkaDispatchHost
from streams.kafka.fleet_log import FleetLog
from streams.kafka.log_producer import Delivered, LogProducer
from tests.unit.kafka.records import Partition, hooks
from tests.unit.store.entries import AT

KEY = "acme/orders/0/http"
NUMBERS = (3, 5)


class FakeProducer:
    """Keeps what is sent until a test folds or refuses it."""

    unreported = 0

    def __init__(self) -> None:
        self.sent: list[tuple[int, bytes, Delivered]] = []
        self.full = False

    def send(self, topic: str, partition: int, value: bytes, key: Any, at: int, delivered: Delivered) -> None:
        if self.full:
            raise StoreError("too much waits for a broker")
        assert topic == "outcomes"
        self.sent.append((partition, value, delivered))


class NoReader:
    async def read(self, partition: int, offsets: Sequence[int]) -> dict[int, bytes]:
        return {}


class World:
    """Two partitions that are owned, each with hooks a and b of its number."""

    def __init__(self, path: Path) -> None:
        self.at = AT
        self.doubtful = False
        self.producer = FakeProducer()
        self.fleet = FleetLog(cast(LogProducer, self.producer), {Topic.OUTCOMES: "outcomes"}, lambda: self.at)
        self.host = KafkaDispatchHost(self.fleet, Bodies(self.fleet, NoReader()), lambda: self.doubtful)
        self.partitions = {number: Partition(path / str(number), number) for number in NUMBERS}
        for number, partition in self.partitions.items():
            partition.add(Topic.HOOKS, hooks(f"{number}-a", f"{number}-b"))
            self.fleet.add(partition.fold)
            self.host.add(number)
        self.told: list[StoreError | None] = []

    def seq(self, name: str) -> int:
        return self.partitions[int(name[0])].seq(name)

    def publish(
        self, *names: str, kind: OutcomeKind = OutcomeKind.DELIVERED, moves: Sequence[BreakerMove] = ()
    ) -> None:
        items = tuple(Outcome(self.seq(name), 0, 0, kind, AT, AT, 1, AT + 1000, "why") for name in names)
        self.host.publish(OutcomeBatch(items, tuple(moves)), {}, self.told.append)

    def fold(self) -> None:
        """The log takes what was sent, and it is folded."""
        while self.producer.sent:
            number, value, delivered = self.producer.sent.pop(0)
            partition = self.partitions[number]
            offset = partition.offsets[Topic.OUTCOMES]
            partition.add(Topic.OUTCOMES, value)
            self.fleet.folded(number, Topic.OUTCOMES)
            delivered(offset, "")

    def claim(self) -> list[tuple[int, int, int]]:
        """Every due row, as a scan takes them: claimed, so passed over from now on."""
        found = []
        while turn := self.host.live.turn(self.at):
            found += self.host.live.page(next(iter(turn)), self.at, 100, lambda seq, sink: True)
        return found

    def close(self) -> None:
        for partition in self.partitions.values():
            partition.tables.close()


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    world = World(tmp_path)
    yield world
    world.close()


def test_rows_and_hooks_come_from_the_partitions_of_their_seqs(world: World) -> None:
    names = ["5-b", "3-a", "5-a", "3-b"]
    rows = world.host.rows([(world.seq(name), 0) for name in names])
    assert [row is not None and row.state for row in rows] == [RowState.PENDING] * 4
    for name in names:
        found = world.host.hook(world.seq(name))
        assert found is not None
        assert found[0].id == name
    assert {place[0] for place in (one for one in world.claim())} == {AT}


def test_a_batch_goes_to_the_partition_of_its_rows_and_counts_when_it_is_folded(world: World) -> None:
    world.publish("3-a", "3-b")
    world.publish("5-a")
    assert [number for number, _, _ in world.producer.sent] == [3, 5]
    assert world.told == []
    world.fold()
    assert world.told == [None, None]
    assert world.partitions[3].tables.counts.total() == (0, 0, 0)
    assert world.partitions[5].tables.counts.total() == (1, 0, 0)


def test_a_row_that_somebody_else_has_put_off_meanwhile_is_due_again(world: World) -> None:
    """A paused owner of before woke and was heard first: this one's outcome is stale, and the row must not be lost."""
    assert len(world.claim()) == 4
    stale = OutcomeBatch((Outcome(world.seq("3-a"), 0, 0, OutcomeKind.RETRY, AT, AT, 1, AT + 1000, "503"),))
    world.partitions[3].add(Topic.OUTCOMES, records.encode(stale))
    world.at = AT + 2000
    # A scan passes over it, for it is claimed still.
    assert next(iter(world.host.live.turn(world.at))) == "acme"
    assert world.host.live.page("acme", world.at, 10, lambda seq, sink: False) == []
    world.publish("3-a")
    world.fold()
    assert world.told == [None]
    ((due_at, seq, sink),) = world.claim()
    assert (due_at, seq, sink) == (AT + 1000, world.seq("3-a"), 0)


def test_a_retry_that_was_folded_before_its_report_is_due(world: World) -> None:
    world.claim()
    world.publish("5-a", kind=OutcomeKind.RETRY)
    number, value, delivered = world.producer.sent.pop()
    world.partitions[5].add(Topic.OUTCOMES, value)
    world.fleet.folded(number, Topic.OUTCOMES)
    world.at = AT + 2000
    world.host.live.turn(world.at)
    assert world.host.live.page("acme", world.at, 10, lambda seq, sink: False) == []  # claimed still
    delivered(0, "")
    assert [seq for _, seq, _ in world.claim()] == [world.seq("5-a")]


def test_while_the_log_refuses_nothing_is_claimed(world: World) -> None:
    world.publish("3-a")
    assert world.host.unavailable is None
    world.producer.sent.pop()[2](None, "the broker is away")
    assert str(world.told[0]) == "the broker is away"
    assert world.host.unavailable == "the broker is away"
    world.at += REFUSED_MS - 1
    assert world.host.unavailable is not None
    world.publish("3-a")
    world.fold()
    assert world.host.unavailable is None
    world.producer.full = True
    with pytest.raises(StoreError):
        world.publish("5-a")
    assert world.host.unavailable is not None
    world.at += REFUSED_MS
    assert world.host.unavailable is None


def test_of_two_breakers_of_a_key_the_later_stands(world: World) -> None:
    older, newer = Breaker(BreakerState.OPEN, 5, 1, AT + 1000, AT), Breaker(BreakerState.OPEN, 5, 2, AT + 9000, AT + 10)
    world.publish("3-a", kind=OutcomeKind.RETRY, moves=[BreakerMove(KEY, newer)])
    world.publish("5-a", kind=OutcomeKind.RETRY, moves=[BreakerMove(KEY, older)])
    world.fold()
    assert world.host.breakers() == {KEY: newer}


def test_a_breaker_that_closes_leaves_every_partition_that_knew_it(world: World) -> None:
    opened = Breaker(BreakerState.OPEN, 5, 1, AT + 1000, AT)
    world.publish("3-a", kind=OutcomeKind.RETRY, moves=[BreakerMove(KEY, opened)])
    world.publish("5-a", kind=OutcomeKind.RETRY, moves=[BreakerMove(KEY, opened)])
    world.fold()
    world.publish("5-b", moves=[BreakerMove(KEY, Breaker(at=AT + 2000))])
    assert [number for number, _, _ in world.producer.sent] == [5, 3]
    world.fold()
    assert world.host.breakers() == {}


def test_a_partition_that_went_is_asked_for_nothing(world: World) -> None:
    gone = world.seq("3-a")
    world.host.remove(3)
    world.fleet.leave(3)
    assert {seq for _, seq, _ in world.claim()} == {world.seq("5-a"), world.seq("5-b")}
    for ask in (world.host.hook, world.host.checked_in, world.host.hook_stored):
        with pytest.raises(StoreError, match="not this node's"):
            ask(gone)
    with pytest.raises(StoreError):
        world.host.rows([(gone, 0)])
    assert not world.host.fetches(gone, lambda: None)
    assert [one.place[0] for found in world.host.waiting("orders") for one in found] == [
        world.seq("5-a"),
        world.seq("5-b"),
    ]


def test_rows_of_a_source_wait_in_every_partition_with_hooks_that_have_to_be_fetched(world: World) -> None:
    tables, seq = world.partitions[5].tables, world.seq("5-a")
    batch = tables.database.batch()
    batch.delete(keys.u64(seq), tables.database.handles["hooks"])
    tables.database.write(batch)
    tables.recent.forget(seq)
    found = {one.place[0]: one.hook_stored for slice_ in world.host.waiting("orders") for one in slice_}
    assert found == {world.seq(name): True for name in ("3-a", "3-b", "5-a", "5-b")}
    assert world.host.hook_stored(seq)


def test_a_check_in_is_folded_before_it_counts(world: World) -> None:
    async def body() -> None:
        seq = world.seq("5-a")
        record = CheckIn("acme", "PACK", AT, (seq, world.seq("5-b")))
        task = asyncio.create_task(world.host.check_in(record))
        await asyncio.sleep(0)
        assert world.host.checked_in(seq) is None
        world.fold()
        await task
        assert world.host.checked_in(seq) == ("PACK", 0)
        assert world.partitions[3].tables.checked_in(seq) is None

    asyncio.run(body())


def test_nothing_begins_while_the_rows_may_be_anothers(world: World) -> None:
    assert world.host.may_begin()
    world.doubtful = True
    assert not world.host.may_begin()
    assert world.host.unavailable == "the group of the workers is not heard"
    world.doubtful = False
    assert world.host.may_begin()
    assert world.host.unavailable is None


def test_rows_of_a_partition_whose_outcomes_are_not_folded_do_not_fill_the_windows(world: World) -> None:
    """Its claims end with nothing, so that all windows would be full of them, and no other row would be claimed."""
    claims = Claims(world.host, Dispatch(max_inflight=32, batch=8))
    for number in NUMBERS:
        world.partitions[number].add(Topic.HOOKS, hooks(*(f"{number}-more-{index}" for index in range(60))))
    stalled, alive = NUMBERS
    world.host.stalled(stalled, True)
    served = 0
    while found := list(claims.scan(world.at)):
        for claim in found:
            assert world.host.partition_of(claim.seq) == alive
            served += 1
            claims.finish(claim)  # its outcome is folded
    assert served == 62
    assert not claims.more(world.at)
    assert world.host.live.next_due_at() is None  # nobody looks again before it goes on
    assert world.host.live.oldest_due_at(world.at) == AT  # but its rows are late

    world.host.stalled(stalled, False)
    assert {world.host.partition_of(claim.seq) for claim in claims.scan(world.at)} == {stalled}
    world.host.stalled(stalled, True)
    world.host.remove(stalled)
    world.host.add(stalled)  # it comes back, as another owner left it
    assert claims.more(world.at)
