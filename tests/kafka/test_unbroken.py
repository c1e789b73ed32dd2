"""Whatever is skipped between the log and the fold is read again, and never committed past, on a real broker."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from aiokafka import TopicPartition as ClientPartition  # type: ignore[import-untyped]
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from faust.types import TP

from schemas.records import Topic, seq_of
from streams.kafka.gap import read_gap
from streams.kafka.places import log_offset
from streams.kafka.transport import FoldConsumer
from streams.kafka.worker import Worker
from tests.kafka.folding import Fleet, in_loop, until, until_async, worker
from tests.unit.kafka.records import hooks, job_start

# The event loop of Faust's consumer thread is left to the collector, with its sockets.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning", "ignore::ResourceWarning")

WAIT_S = 60.0


def _send(fleet: Fleet, first: int, end: int) -> None:
    fleet.send(Topic.HOOKS, [(0, hooks(f"hook-{number}")) for number in range(first, end)])


def _folded(running: Worker) -> set[int]:
    """Offsets of `hooks` whose hook has a row in partition 0."""
    tables = running.owned.tables.get(0)
    if tables is None:
        return set()
    return {offset for offset in range(30) if tables.row(seq_of(log_offset(0, offset), 0), 0) is not None}


async def _committed(fleet: Fleet, running: Worker, count: int) -> None:
    """Wait until the group has committed `count` records of hooks; nothing beyond what is folded, all the while."""

    def reached() -> bool:
        committed = fleet.committed()[fleet.names.hooks, 0][0]
        assert committed <= running.table.store.partitions[0].fold.offset(Topic.HOOKS) + 1
        return committed == count

    await until_async(reached, f"{count} are committed", WAIT_S)


async def _skipping(running: Worker, place: TP, to: int, meanwhile: Any) -> None:
    """Have what comes `meanwhile` skipped up to offset `to`."""
    consumer = running.app.consumer
    client, asked = consumer._thread._consumer, ClientPartition(*place)
    client.pause(asked)
    meanwhile()
    await consumer.seek_wait({place: to})
    client.resume(asked)


@in_loop
async def test_records_that_were_skipped_are_read_first(broker: str, tmp_path: Path) -> None:
    fleet = Fleet(broker, partitions=1)
    place = TP(fleet.names.hooks, 0)
    _send(fleet, 0, 5)
    async with worker(fleet, tmp_path) as running:
        await until_async(lambda: _folded(running) == set(range(5)), "five are folded", WAIT_S)
        await _skipping(running, place, 8, lambda: _send(fleet, 5, 10))
        await until_async(lambda: _folded(running) == set(range(10)), "all are folded", WAIT_S)
        assert not running.app.consumer._gap[place]
        await _committed(fleet, running, 10)


@in_loop
async def test_a_seek_that_came_to_nothing_is_made_again_though_no_other_record_comes(
    broker: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one amid a fetch does, of whose records Faust then remembers the last."""
    fleet = Fleet(broker, partitions=1)
    _send(fleet, 0, 5)
    async with worker(fleet, tmp_path) as running:
        await until_async(lambda: _folded(running) == set(range(5)), "five are folded", WAIT_S)
        read_from, seeks = running.table._read_from, [0]

        async def lost_once(*given: Any) -> None:
            seeks[0] += 1
            if seeks[0] > 1:
                await read_from(*given)

        monkeypatch.setattr(running.table, "_read_from", lost_once)
        await _skipping(running, TP(fleet.names.hooks, 0), 8, lambda: _send(fleet, 5, 10))
        await until_async(lambda: _folded(running) == set(range(10)), "all are folded", WAIT_S)
        await _committed(fleet, running, 10)


@pytest.mark.parametrize("begins", [6, pytest.param(9, marks=pytest.mark.soak)])
@in_loop
async def test_records_that_the_brokers_have_no_more_are_not_waited_for(
    broker: str, tmp_path: Path, begins: int
) -> None:
    """Whether the topic begins before or behind the first record that came."""
    fleet = Fleet(broker, partitions=1)
    place = TP(fleet.names.hooks, 0)
    _send(fleet, 0, 5)

    def meanwhile() -> None:
        _send(fleet, 5, 10)
        admin = AdminClient({"bootstrap.servers": broker})
        for future in admin.delete_records([TopicPartition(*place, begins)]).values():
            future.result(20)

    async with worker(fleet, tmp_path) as running:
        await until_async(lambda: _folded(running) == set(range(5)), "five are folded", WAIT_S)
        await _skipping(running, place, 8, meanwhile)
        left = {*range(5), *range(begins, 10)}
        await until_async(lambda: _folded(running) == left, "those that are left are folded", WAIT_S)
        await _committed(fleet, running, 10)


def _send_in_transactions(fleet: Fleet, first: int, end: int) -> None:
    """As no part of a fleet does: each leaves a marker of the brokers' at an offset of its own."""
    producer = Producer({"bootstrap.servers": fleet.broker, "transactional.id": f"{fleet.names.hooks}-by-hand"})
    producer.init_transactions(WAIT_S)
    for number in range(first, end):
        end = fleet.committed()[fleet.names.hooks, 0][1]
        producer.begin_transaction()
        producer.produce(fleet.names.hooks, hooks(f"hook-{number}"), partition=0)
        producer.commit_transaction(WAIT_S)
        marked = end + 2  # the marker comes a moment after the answer
        until(lambda marked=marked: fleet.committed()[fleet.names.hooks, 0][1] == marked, "it is marked")  # type: ignore[misc]


@in_loop
async def test_a_hole_that_brokers_have_no_record_for_is_gone_over(
    broker: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Of two transactions one after the other, and of one that is the last record as another worker begins."""
    fleet = Fleet(broker, partitions=1)
    _send(fleet, 0, 2)
    async with worker(fleet, tmp_path) as running:
        await until_async(lambda: _folded(running) == {0, 1}, "two are folded", WAIT_S)
        _send_in_transactions(fleet, 2, 4)  # at 2 and 4, with their markers at 3 and 5
        _send(fleet, 6, 8)
        await until_async(lambda: _folded(running) == {0, 1, 2, 4, 6, 7}, "all are folded", WAIT_S)
        await _committed(fleet, running, 8)
        _send_in_transactions(fleet, 8, 9)
        await until_async(lambda: 8 in _folded(running), "one more is folded", WAIT_S)
        await running.table.store.drained(WAIT_S)
    async with worker(fleet, tmp_path) as running:
        _send(fleet, 10, 12)
        await until_async(lambda: {10, 11} <= _folded(running), "those after it are folded", WAIT_S)
        await _committed(fleet, running, 12)
    holes = {message for message in caplog.messages if "event=hole_in_topic" in message}
    assert holes == {f"event=hole_in_topic topic=hooks partition=0 from={place} to={place + 1}" for place in (3, 5, 9)}


@in_loop
async def test_a_gap_is_read_to_its_end_and_no_further(broker: str, tmp_path: Path) -> None:
    """A broker that has just begun to lead may say for a moment that the topic ends before: that is waited for."""
    fleet = Fleet(broker, partitions=1)
    _send(fleet, 0, 4)

    def reading(gap: range, most: int | None = None) -> list[int] | None:
        read = read_gap(fleet.config, Topic.HOOKS, 0, gap, lambda: False, most)
        return None if read is None else [record.offset for record in read]

    assert reading(range(1, 3)) == [1, 2]
    assert reading(range(1, 3), 1) == [1]
    waiting = asyncio.get_running_loop().run_in_executor(None, reading, range(3, 6))
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(asyncio.shield(waiting), 2)
    _send(fleet, 4, 7)
    assert await asyncio.wait_for(waiting, WAIT_S) == [3, 4, 5]


@in_loop
async def test_a_commit_beyond_what_was_folded_loses_nothing(broker: str, tmp_path: Path) -> None:
    """What another build, or another hand, has committed: a worker goes by its tables."""
    fleet = Fleet(broker, partitions=1)
    _send(fleet, 0, 5)
    async with worker(fleet, tmp_path) as running:
        await until_async(lambda: _folded(running) == set(range(5)), "five are folded", WAIT_S)
        await running.table.store.drained(WAIT_S)
    _send(fleet, 5, 10)
    fleet.commit({(fleet.names.hooks, 0): 10})
    async with worker(fleet, tmp_path) as running:
        await until_async(lambda: _folded(running) == set(range(10)), "all are folded", WAIT_S)


@in_loop
async def test_a_topic_that_ends_before_what_was_folded_ends_the_worker(broker: str, tmp_path: Path) -> None:
    """Made again, as whoever lost its brokers' disks would: new hooks would have the offsets of old ones."""
    fleet = Fleet(broker, partitions=1)
    _send(fleet, 0, 5)
    async with worker(fleet, tmp_path) as running:
        await until_async(lambda: _folded(running) == set(range(5)), "five are folded", WAIT_S)
        await running.table.store.drained(WAIT_S)
    fleet.make_again(fleet.names.hooks)
    _send(fleet, 0, 2)
    async with worker(fleet, tmp_path) as running, asyncio.timeout(WAIT_S):
        assert "hooks ends at offset 2, and its tables hold what it had up to 4" in await running.failed()


def _commands(fleet: Fleet, first: int, end: int) -> None:
    fleet.send(Topic.REPLAYS, [(0, job_start(f"job-{number}")) for number in range(first, end)])


def _jobs(running: Worker) -> set[str]:
    """Those that partition 0 knows."""
    tables = running.owned.tables.get(0)
    return set() if tables is None else {job for number in range(30) if tables.job(job := f"job-{number}") is not None}


def _named(end: int) -> set[str]:
    return {f"job-{number}" for number in range(end)}


@in_loop
async def test_replay_commands_that_were_skipped_are_folded_first(broker: str, tmp_path: Path) -> None:
    """Though their topic is compacted, and a jump in its offsets may be a hole."""
    fleet = Fleet(broker, partitions=1)
    place = TP(fleet.names.replays, 0)
    _commands(fleet, 0, 5)
    async with worker(fleet, tmp_path) as running:
        await until_async(lambda: _jobs(running) == _named(5), "five are folded", WAIT_S)
        await _skipping(running, place, 8, lambda: _commands(fleet, 5, 10))
        await until_async(lambda: "job-9" in _jobs(running), "the last is folded", WAIT_S)
        assert _jobs(running) == _named(10)
        await until_async(fleet.everything_committed, "all are committed", WAIT_S)


@in_loop
async def test_a_hole_of_a_compacted_topic_is_passed(
    broker: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It costs one read. The end of a transaction takes an offset and is no record, as one that was compacted away."""
    caplog.set_level("INFO", "ankusa.kafka")
    fleet = Fleet(broker, partitions=1)
    _commands(fleet, 0, 2)
    producer = Producer({"bootstrap.servers": broker, "transactional.id": f"{fleet.names.replays}-hole"})
    producer.init_transactions(20)
    producer.begin_transaction()
    producer.produce(fleet.names.replays, job_start("job-2"), b"key", 0)
    producer.commit_transaction(20)
    async with worker(fleet, tmp_path) as running:
        await until_async(lambda: _jobs(running) == _named(3), "three are folded", WAIT_S)
        _commands(fleet, 3, 6)
        await until_async(lambda: _jobs(running) == _named(6), "those behind the hole are folded", WAIT_S)
        await until_async(fleet.everything_committed, "all are committed", WAIT_S)
    gaps = [message for message in caplog.messages if "event=gap_read" in message]
    assert gaps == ["event=gap_read topic=replays partition=0 from=3 at=4 records=0"]


@in_loop
async def test_a_partition_that_goes_as_a_gap_of_it_was_read_is_left_alone(
    broker: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fleet = Fleet(broker, partitions=1)
    _commands(fleet, 0, 5)
    passed, went = FoldConsumer.passed, asyncio.Event()
    async with worker(fleet, tmp_path) as running:

        async def goes(consumer: FoldConsumer, *gap: Any) -> None:
            await passed(consumer, *gap)
            await running.table.store.on_rebalance(set(), set(), set())
            went.set()

        monkeypatch.setattr(FoldConsumer, "passed", goes)
        await until_async(lambda: _jobs(running) == _named(5), "five are folded", WAIT_S)
        failed = asyncio.ensure_future(running.failed())
        await _skipping(running, TP(fleet.names.replays, 0), 8, lambda: _commands(fleet, 5, 10))
        await asyncio.wait_for(went.wait(), WAIT_S)
        await running.table.store.drained(0)  # whatever follows of that has been said
        assert not failed.done(), failed.result()
        failed.cancel()
