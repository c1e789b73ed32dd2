"""When what services publish counts as folded: late reports, early folds, refusals, partitions that go."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, cast

import pytest

from ankusa.store.errors import StoreError
from schemas.records import Topic
from streams.kafka.fleet_log import FleetLog, UnansweredError
from streams.kafka.log_producer import Delivered, LogProducer
from tests.unit.store.entries import AT


class FakeProducer:
    """Takes records; a test says what becomes of them."""

    def __init__(self) -> None:
        self.sent: list[tuple[str, int, Delivered]] = []
        self.unreported = 0

    def send(self, topic: str, partition: int, value: Any, key: Any, at: int, delivered: Delivered) -> None:
        self.sent.append((topic, partition, delivered))
        self.unreported += 1

    def report(self, offset: int | None, place: int = 0) -> None:
        self.unreported -= 1
        self.sent.pop(place)[2](offset, "refused" if offset is None else "")


class FakePartition:
    def __init__(self, number: int) -> None:
        self.partition = number
        self.tables: Any = None
        self.at = AT
        self.turn = self.epoch = 0
        self.passed = -1

    def offset(self, topic: Topic) -> int:
        return self.passed


class World:
    def __init__(self) -> None:
        self.producer = FakeProducer()
        self.wall_ms, self.monotonic_s = AT - 1_000_000, 100.0
        self.log = FleetLog(
            cast(LogProducer, self.producer),
            {Topic.OUTCOMES: "outcomes"},
            lambda: self.wall_ms,
            lambda: self.monotonic_s,
        )
        self.partition = FakePartition(3)
        self.log.add(cast(Any, self.partition))
        self.told: list[str | None] = []

    def publish(self) -> None:
        self.log.publish(Topic.OUTCOMES, 3, b"", self.tell())

    def tell(self) -> Callable[[StoreError | None], None]:
        return lambda error: self.told.append(None if error is None else str(error))

    def pass_s(self, seconds: float) -> None:
        self.wall_ms += int(seconds * 1000)
        self.monotonic_s += seconds

    def fold(self, offset: int) -> None:
        self.partition.passed = offset
        self.log.folded(3, Topic.OUTCOMES)


@pytest.fixture
def world() -> World:
    return World()


def test_a_record_counts_when_the_fold_has_passed_it(world: World) -> None:
    for _ in range(3):
        world.publish()
    for offset in (5, 6, 9):
        world.producer.report(offset)
    assert (world.told, world.log.owed) == ([], 3)
    world.fold(6)
    assert (world.told, world.log.owed) == ([None, None], 1)
    world.fold(12)
    assert (world.told, world.log.owed) == ([None] * 3, 0)


def test_a_fold_that_is_quicker_than_the_report_counts_at_the_report(world: World) -> None:
    world.publish()
    world.fold(7)
    assert world.told == []
    world.producer.report(7)
    assert world.told == [None]


def test_a_refusal_is_told_once_and_only_to_who_sent_it(world: World) -> None:
    world.publish()
    world.publish()
    world.producer.report(None)
    assert world.told == ["refused"]
    world.producer.report(1)
    world.fold(1)
    assert world.told == ["refused", None]


def test_a_partition_that_leaves_frees_who_waits_and_takes_no_more_once_it_is_gone(world: World) -> None:
    world.publish()
    world.producer.report(4)
    world.publish()
    world.log.leave(3)
    assert world.told == [None]
    world.producer.report(5)  # in the log: its next owner folds it
    assert world.told == [None, None]
    world.publish()  # an attempt that ended in its grace
    world.log.gone(3)
    with pytest.raises(StoreError, match="not this node's"):
        world.publish()
    assert world.log.tables(3) is None


def test_a_partition_that_comes_back_in_the_grace_stays(world: World) -> None:
    world.log.leave(3)
    world.log.add(cast(Any, world.partition))
    world.log.gone(3)
    world.publish()
    world.producer.report(2)
    assert world.told == []
    world.fold(2)
    assert world.told == [None]


def test_log_time_is_never_before_the_last_record_of_a_partition(world: World) -> None:
    assert world.log.now() == AT
    world.partition.at = AT + 5
    world.fold(0)
    assert world.log.now() == AT + 5
    world.log.leave(3)
    assert world.log.now() == AT + 5


def test_log_time_goes_on_where_a_brokers_clock_is_ahead_until_the_wall_has_caught_up(world: World) -> None:
    """Or no retry would come due until this node's clock has caught up."""
    assert world.log.now() == AT == world.wall_ms + 1_000_000
    world.pass_s(10)
    assert world.log.now() == AT + 5000
    world.partition.at = AT + 10_000  # the next record, with the broker's time
    world.fold(0)
    assert world.log.now() == AT + 10_000
    for _ in range(2000):
        world.pass_s(1)
        assert world.log.now() >= AT + 10_000
    assert world.log.now() == world.wall_ms == AT + 1_010_000


def test_a_record_far_ahead_is_told_of_once_in_ten_minutes(world: World, caplog: pytest.LogCaptureFixture) -> None:
    assert caplog.messages == []  # the partition that came was told of before anybody listened
    for minute in range(1, 25):
        world.pass_s(60)
        world.partition.at = world.wall_ms + 3_600_000
        world.fold(minute)
    assert caplog.messages == ["event=log_time_ahead partition=3 ahead_ms=3600000"] * 2


def test_clocks_that_are_seconds_apart_are_nothing_to_tell_of(caplog: pytest.LogCaptureFixture) -> None:
    log = FleetLog(cast(LogProducer, FakeProducer()), {}, lambda: AT)
    partition = FakePartition(3)
    partition.at = AT + 5000
    log.add(cast(Any, partition))
    assert caplog.messages == []


@pytest.mark.parametrize("owned", [True, False], ids=["to a partition of this node", "to any"])
def test_who_waits_for_a_partition_that_does_not_answer_is_told_in_time(world: World, owned: bool) -> None:
    async def body() -> None:
        send = world.log.append if owned else world.log.deliver
        with pytest.raises(UnansweredError, match=r"outcomes\[3\] has not answered within 0.05 s; it may still arrive"):
            await send(Topic.OUTCOMES, 3, b"", None, 0.05)
        world.producer.report(7)  # it arrives all the same, and nobody hears of it
        world.fold(7)
        assert world.log.owed == 0

    asyncio.run(body())
