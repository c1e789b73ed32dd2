"""What a worker deletes of the topics of its partitions, on a real broker: up to the first hook that is needed."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest

from ankusa.clock import now_ms
from ankusa.store import keys
from ankusa.store.errors import StoreError
from ankusa.store.tables import Tables
from schemas import records
from schemas.records import Outcome, OutcomeBatch, OutcomeKind, Topic
from streams.kafka import places
from streams.kafka import worker as worker_module
from streams.kafka.bodies import Bodies
from streams.kafka.changelog import Entry
from streams.kafka.compacted_reader import CompactedReader
from streams.kafka.dead_hooks import DeadHooks, check_dead
from streams.kafka.fleet_log import FleetLog
from streams.kafka.folding import PartitionFold
from streams.kafka.hook_reader import HookReader
from streams.kafka.id_reader import IdReader
from streams.kafka.log_producer import LogProducer, open_producer
from streams.kafka.partition import Opening, Partition
from streams.kafka.topic_trim import TopicTrim
from streams.kafka.transactions import Transactions
from streams.kafka.trimming import Trimming
from tests.kafka.folding import DEADLINE_S, Fleet, in_loop, until, until_async, worker
from tests.unit.kafka.records import holds, hooks

AT = 1_700_000_000_000


class Node:
    """A worker that folds and trims, in this process. Each hook has two rows."""

    def __init__(
        self, fleet: Fleet, log: FleetLog, bodies: Bodies, trimming: Trimming, dead_reader: CompactedReader
    ) -> None:
        self.dead_reader = dead_reader
        self.fleet = fleet
        self.log = log
        self.bodies = bodies
        self.trimming = trimming

    @property
    def tables(self) -> Tables:
        tables = self.log.tables(0)
        assert tables is not None
        return tables

    def seq(self, name: str) -> int:
        seq = self.tables.seq_of(name)
        assert seq is not None, name
        return seq

    def stored(self, name: str) -> bool:
        return bool(self.tables.database.present("hooks", [keys.u64(self.seq(name))]))

    async def settle(self, kind: OutcomeKind, *names: str) -> None:
        """Both rows of each."""
        items = tuple(
            Outcome(self.seq(name), sink, 0, kind, AT, AT, 1, error="gone") for name in names for sink in (0, 1)
        )
        await asyncio.to_thread(self.fleet.send, Topic.OUTCOMES, [(0, records.encode(OutcomeBatch(items)))])
        await until_async(lambda: not any(self._live(name) for name in names), "the outcomes are folded")

    def _live(self, name: str) -> bool:
        return any(row.state is not records.RowState.DEAD for _, row in self.tables.rows_of(self.seq(name)))

    async def pass_of_all(self) -> None:
        """A pass when the group has committed everything."""
        await asyncio.to_thread(_committed, self.fleet)
        await self.trimming.run()


def _committed(fleet: Fleet) -> None:
    until(fleet.everything_committed, "the group has committed everything")


@asynccontextmanager
async def node(fleet: Fleet, folder: Path) -> AsyncIterator[Node]:
    producer = LogProducer(lambda: open_producer(fleet.config.kafka))
    topic_reader = HookReader.of(fleet.config)
    dead_reader = CompactedReader.of(fleet.config, fleet.names.dead, check_dead)
    async with worker(fleet, folder) as running:
        log = FleetLog(producer, {}, now_ms)
        dead = DeadHooks(fleet.names.dead, log, producer, dead_reader)
        bodies = Bodies(log, topic_reader, dead.read_back)
        topics = fleet.names.hooks, fleet.names.quarantine
        # A broker's clock may be ahead by a moment: what was written now is old enough.
        trimming = Trimming(log, bodies, dead, TopicTrim(fleet.config), topics, running.owned.still_owned, -60_000)

        def assigned(fold: PartitionFold) -> None:
            log.add(fold)
            bodies.add(fold.partition)
            trimming.add(fold.partition)

        def revoked(number: int) -> None:
            trimming.remove(number)
            bodies.remove(number)
            log.leave(number)

        running.owned.on_revoked(revoked)
        running.owned.on_assigned(assigned)
        await until_async(lambda: len(log.partitions) == fleet.partitions, "the partitions are owned")
        yield Node(fleet, log, bodies, trimming, dead_reader)
    await topic_reader.close()
    await dead_reader.close()
    await producer.close()


def offsets(fleet: Fleet, topic: str) -> list[int]:
    """What an independent client finds in partition 0."""
    return [record.offset for record in fleet.read(topic) if record.partition == 0]


def compacted(fleet: Fleet) -> set[int]:
    found = {record.key: record.value for record in fleet.read(fleet.names.dead)}
    return {int(key) for key, value in found.items() if value is not None and key not in NO_SEQS}


NO_SEQS = (b"\xff\xfe", b"9" * 30, b"07", str(places.first_seq(1)).encode())
"""Keys that no hook of partition 0 has in `dead`."""


@in_loop
async def test_topics_go_up_to_what_is_needed_and_dead_hooks_outlive_them(broker: str, tmp_path: Path) -> None:
    fleet = Fleet(broker, partitions=2)
    pen, _ = holds("held")
    fleet.send(Topic.QUARANTINE, [(0, pen)])
    for names in (("a", "b"), ("c",), ("d",)):
        fleet.send(Topic.HOOKS, [(0, hooks(*names, sinks=2))])
    async with node(fleet, tmp_path / "first") as first:
        await until_async(lambda: first.tables.seq_of("d") is not None, "the hooks are folded")
        await first.settle(OutcomeKind.DELIVERED, "a", "d")
        await first.settle(OutcomeKind.DEAD, "b")
        await first.pass_of_all()
        assert offsets(fleet, fleet.names.hooks) == [1, 2]
        assert offsets(fleet, fleet.names.quarantine) == []
        assert compacted(fleet) == {first.seq("b")}
        assert first.tables.pen_size()[0] == 1  # what is held is in the tables, and in their changelog
        await first.settle(OutcomeKind.DELIVERED, "c")
        await first.pass_of_all()
        assert offsets(fleet, fleet.names.hooks) == []
        assert first.trimming.counts() == {"hooks_topic": 3, "quarantine_topic": 1, "dead_topic": 0}
        # What comes next is folded as ever.
        await asyncio.to_thread(fleet.send, Topic.HOOKS, [(0, hooks("e", sinks=2))])
        await until_async(lambda: first.tables.seq_of("e") is not None, "the next hook is folded")
        dead = first.seq("b")
    poison = [*NO_SEQS, str(dead).encode()]
    for key in poison:
        fleet.producer.produce(fleet.names.dead, b"no hook", key, 0)
    assert fleet.producer.flush(DEADLINE_S) == 0
    # A worker without a disk: the row from the changelog, its hook from `dead`, whatever else is there.
    async with node(fleet, tmp_path / "second") as second:
        assert second.tables.pen_size()[0] == 1
        assert not second.stored("b")
        fetched = asyncio.Event()
        second.bodies.fetch(dead, fetched.set)
        await asyncio.wait_for(fetched.wait(), DEADLINE_S)
        assert second.stored("b")
        assert second.dead_reader.passed.count == len(poison)
        assert not second.bodies.missing(dead)
        await _deliver_dead(second, "b")
        await second.pass_of_all()
        assert compacted(fleet) == set()
        assert second.trimming.counts()["dead_topic"] == 1
        assert offsets(fleet, fleet.names.hooks) == [3]  # `e` waits


async def _deliver_dead(node: Node, name: str) -> None:
    """As a replay and a delivery do."""
    job = records.Job(
        id="j",
        kind="dlq",
        state=records.JobState.RUNNING,
        filter={},
        rate=9,
        max_lag_ms=0,
        created_at=AT,
        updated_at=AT,
    )
    await asyncio.to_thread(node.fleet.send, Topic.REPLAYS, [(0, records.encode(records.JobStart(job)))])
    await until_async(lambda: node.tables.job("j") is not None, "the job is folded")
    seq = node.seq(name)
    revivals = tuple(records.Revival(seq, sink, row.generation) for sink, row in node.tables.rows_of(seq))
    page = records.Page("j", AT, b"", 2, 0, revivals, epoch=node.log.partitions[0].epoch)
    await asyncio.to_thread(node.fleet.send, Topic.OUTCOMES, [(0, records.encode(page))])
    await until_async(lambda: node._live(name), "the page is folded")
    items = tuple(
        Outcome(seq, sink, row.generation, OutcomeKind.DELIVERED, AT, AT, 1) for sink, row in node.tables.rows_of(seq)
    )
    await asyncio.to_thread(node.fleet.send, Topic.OUTCOMES, [(0, records.encode(OutcomeBatch(items)))])
    await until_async(lambda: not node.tables.rows_of(seq), "it is delivered")


@in_loop
async def test_an_owner_of_before_deletes_nothing(broker: str, tmp_path: Path) -> None:
    fleet = Fleet(broker, partitions=1)
    fleet.send(Topic.HOOKS, [(0, hooks("a", sinks=2))])
    async with node(fleet, tmp_path / "first") as first:
        await until_async(lambda: first.tables.seq_of("a") is not None, "the hook is folded")
        await first.settle(OutcomeKind.DELIVERED, "a")
        await asyncio.to_thread(_committed, fleet)
        with Fenced(fleet, tmp_path) as fenced:
            await fenced.open()
            await first.trimming.run()
        assert offsets(fleet, fleet.names.hooks) == [0]


@in_loop
async def test_a_partition_whose_changelog_nobody_can_write_holds_no_other_back(
    broker: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_module, "ASKED_S", 0.5)
    stalled, alive = 0, 1
    mended = threading.Event()
    commit = Transactions.commit

    def stalling(transactions: Transactions, entries: Sequence[Entry]) -> int:
        """As where no broker leads: the transaction waits, and is committed once one does."""
        if transactions._partition == stalled:
            mended.wait(DEADLINE_S)
        return commit(transactions, entries)

    fleet = Fleet(broker, partitions=2)
    pen, _ = holds("held")
    fleet.send(Topic.QUARANTINE, [(number, pen) for number in (stalled, alive)])
    async with node(fleet, tmp_path / "worker") as trimmed:
        await asyncio.to_thread(_committed, fleet)
        monkeypatch.setattr(Transactions, "commit", stalling)
        try:
            await asyncio.wait_for(trimmed.trimming.run(), DEADLINE_S / 3)
            assert [record.partition for record in fleet.read(fleet.names.quarantine)] == [stalled]
            assert set(trimmed.log.partitions) == {stalled, alive}  # as far as anybody knows
        finally:
            mended.set()
        await trimmed.trimming.run()
        assert fleet.read(fleet.names.quarantine) == []


class Fenced:
    """Another owner of partition 0, which the group does not know: as one that took over from a worker that slept."""

    def __init__(self, fleet: Fleet, folder: Path) -> None:
        node = msgspec.structs.replace(fleet.config.node, data_dir=str(folder / "other"))
        self._executor = ThreadPoolExecutor(4)
        config = msgspec.structs.replace(fleet.config, node=node)
        self._opening = Opening(config, "other", Tables, self._executor, IdReader(config))

    def __enter__(self) -> Fenced:
        return self

    def __exit__(self, *_: object) -> None:
        self._executor.shutdown(wait=False)

    async def open(self) -> None:
        partition = await Partition.open(self._opening, 0, lambda: False)
        await partition.close()


@in_loop
async def test_a_broker_that_is_away_is_told_and_deletes_nothing(broker: str, tmp_path: Path) -> None:
    fleet = Fleet(broker, partitions=1)
    away = msgspec.structs.replace(fleet.config.kafka, brokers=("127.0.0.1:1",))
    trim = TopicTrim(msgspec.structs.replace(fleet.config, kafka=away), request_s=0.5)
    with pytest.raises(StoreError, match=r"the offsets of .*workers cannot be read"):
        await asyncio.to_thread(trim.spans, [(fleet.names.hooks, 0)], now_ms())
    begins, refused = await asyncio.to_thread(trim.delete_below, {(fleet.names.hooks, 0): 1})
    assert (begins, str(refused).split(":")[0]) == ({}, "records cannot be deleted")
