"""What a host on Faust needs to be correct: each of the things that broke one, on a real broker, looked into."""

from __future__ import annotations

import asyncio
import inspect
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import pytest
from faust.tables.manager import TableManager
from faust.tables.recovery import Recovery
from faust.transport.drivers.aiokafka import Transport
from faust.types import TP

from ankusa.store.errors import StoreLockedError
from ankusa.store.tables import Tables
from schemas import records
from schemas.records import Outcome, OutcomeBatch, OutcomeKind, Page, Revival, Takeover, Topic
from streams.kafka import places
from streams.kafka.app import build_app
from streams.kafka.id_reader import IdReader
from streams.kafka.membership import Membership
from streams.kafka.partition import Opening, Partition
from streams.kafka.record_fold import epoch_of
from streams.kafka.recovery import BulkRecovery
from streams.kafka.sender import Sender
from streams.kafka.transactions import Transactions
from streams.kafka.transport import FETCH_LEAST_BYTES, FETCH_WAIT_MS
from streams.kafka.worker import ENDS_S, Worker
from tests.kafka.folding import Fleet, WorkerProcess, in_loop, until_async, worker
from tests.unit.kafka.records import hooks, job_start
from tests.unit.store.entries import AT

# The event loop of Faust's consumer thread is left to the collector, with its sockets.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning", "ignore::ResourceWarning")


class Gate:
    """Holds transactions up until it is opened."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._open = threading.Event()
        self.arrived = threading.Event()
        attempt = Transactions._attempt

        def held(transactions: Transactions, producer: Any, entries: Any) -> None:
            self.arrived.set()
            assert self._open.wait(120)
            attempt(transactions, producer, entries)

        monkeypatch.setattr(Transactions, "_attempt", held)

    def open(self) -> None:
        self._open.set()


async def owned(running: Worker, count: int) -> None:
    await until_async(lambda: len(running.owned.tables) == count, f"{count} partitions are owned")


def folded(running: Worker, count: int) -> bool:
    return sum(partition.fold.figures.records for partition in running.table.store.partitions.values()) >= count


def committed(fleet: Fleet) -> int:
    return sum(offset for offset, _ in fleet.committed().values())


@in_loop
async def test_an_event_is_acknowledged_when_its_entries_are_in_the_changelog(
    broker: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Faust's commit waits for nobody but Faust's own producer: the acknowledgement has to."""
    fleet, gate = Fleet(broker, partitions=1), Gate(monkeypatch)
    fleet.send(Topic.HOOKS, [(0, hooks(f"hook-{number}")) for number in range(20)])
    async with worker(fleet, tmp_path) as running:
        await until_async(lambda: folded(running, 20), "the hooks are folded")
        await running.app.consumer.commit()
        assert await asyncio.to_thread(committed, fleet) == 0
        assert await asyncio.to_thread(fleet.read, fleet.names.changelog) == []
        gate.open()
        async with asyncio.timeout(60):
            while await asyncio.to_thread(committed, fleet) < 20:
                await asyncio.sleep(0.2)


@in_loop
async def test_a_late_delivery_report_touches_no_partition_that_has_gone(
    broker: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fleet, gate = Fleet(broker, partitions=1), Gate(monkeypatch)
    fleet.send(Topic.HOOKS, [(0, hooks("hook"))])
    monkeypatch.setattr("streams.kafka.partition.CLOSE_S", 0.1)
    monkeypatch.setattr("streams.kafka.worker.REVOKED_S", 0.1)
    async with worker(fleet, tmp_path) as running:
        await until_async(gate.arrived.is_set, "a transaction is under way")
        partition = running.table.store.partitions[0]
        path = partition.fold.tables.database.path
        with pytest.raises(StoreLockedError):
            Tables(path)
        acknowledged = running.app.consumer._acked
        await running.table.store._close([0])
        taken_elsewhere = Tables(path)  # nothing keeps the lock
        gate.open()
        await asyncio.sleep(0)
        await until_async(lambda: partition.sender._task is not None and partition.sender._task.done(), "it has ended")
        assert not any(acknowledged.values())
        taken_elsewhere.close()


@in_loop
async def test_the_streams_begin_when_the_restore_is_done_and_faust_applies_no_changelog(
    broker: str, tmp_path: Path
) -> None:
    fleet = Fleet(broker, partitions=2)
    fleet.send(Topic.HOOKS, [(number % 2, hooks(f"hook-{number}")) for number in range(40)])
    async with worker(fleet, tmp_path / "first") as first:
        await until_async(lambda: folded(first, 40), "the hooks are folded")
        await first.table.store.drained(30)
    async with worker(fleet, tmp_path / "second") as second:
        await owned(second, 2)
        assert isinstance(second.app.tables.recovery, BulkRecovery)
        assert sum(tables.counts.total()[0] for tables in second.owned.tables.values()) == 40
        assert all(partition.fold.turn >= 20 for partition in second.table.store.partitions.values())
        before = second.owned.tables[0].counts.total()
        second.table.store.apply_changelog_batch([object()], None, None)  # what it may be handed amid a rebalance
        assert second.owned.tables[0].counts.total() == before
        # What a fetch for idle partitions waits, busy ones wait too.
        fetcher = second.app.consumer._thread._consumer._fetcher
        assert (fetcher._fetch_max_wait_ms, fetcher._fetch_min_bytes) == (FETCH_WAIT_MS, FETCH_LEAST_BYTES)
        changelog = fleet.names.changelog
        assert {tp.topic for tp in second.app.consumer._paused_partitions} == {changelog}


@in_loop
async def test_the_group_is_joined_without_a_wait_for_tables_that_nobody_makes(
    broker: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slept: list[float] = []

    async def sleep(manager: TableManager, seconds: float) -> None:
        slept.append(seconds)

    monkeypatch.setattr(TableManager, "sleep", sleep)
    async with worker(Fleet(broker, partitions=1), tmp_path) as running:
        await owned(running, 1)
    assert slept == []


@in_loop
async def test_what_is_dropped_amid_a_rebalance_is_read_again_although_nothing_was_committed(
    broker: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fleet, gate = Fleet(broker, partitions=1), Gate(monkeypatch)
    fleet.send(Topic.HOOKS, [(0, hooks(f"hook-{number}")) for number in range(5)])
    async with worker(fleet, tmp_path) as running:
        await until_async(lambda: folded(running, 5), "the hooks are folded")
        consumer, place = running.app.consumer, TP(fleet.names.hooks, 0)
        before = running.table.store.partitions[0].fold.figures.skipped
        await consumer.seek_wait({place: 5})  # as if they had been fetched, and dropped
        await consumer.perform_seek()
        fold = running.table.store.partitions[0].fold
        await until_async(lambda: fold.figures.skipped >= before + 5, "they are read again, and skipped")
        gate.open()


@in_loop
async def test_a_page_of_an_owner_of_before_is_refused_in_the_fold(broker: str, tmp_path: Path) -> None:
    fleet = Fleet(broker, partitions=1)
    seq = records.seq_of(places.log_offset(0, 0), 0)
    fleet.send(Topic.HOOKS, [(0, hooks("hook"))])
    fleet.send(Topic.REPLAYS, [(0, job_start())])
    dead = OutcomeBatch((Outcome(seq, 0, 0, OutcomeKind.DEAD, AT, AT, 1),))
    async with worker(fleet, tmp_path) as running:
        await owned(running, 1)
        tables, fold = running.owned.tables[0], running.owned.folds[0]
        await until_async(lambda: tables.row(seq, 0) is not None and tables.job("job-1") is not None, "they are there")
        mine = fold.epoch
        assert mine >= epoch_of(0)
        fleet.send(Topic.OUTCOMES, [(0, records.encode(dead))])
        fleet.send(Topic.OUTCOMES, [(0, records.encode(Takeover("a later owner", AT)))])
        page = Page("job-1", AT, b"cursor", 1, 0, (Revival(seq, 0, 1),), epoch=mine)
        fleet.send(Topic.OUTCOMES, [(0, records.encode(page))])
        await until_async(lambda: fold.figures.refused_pages == 1, "the page is refused")
        kept, row = tables.job("job-1"), tables.row(seq, 0)
        assert kept is not None
        assert row is not None
        assert (kept.cursor, kept.moved, row.state) == (None, 0, records.RowState.DEAD)


@in_loop
async def test_what_an_owner_of_before_still_sends_is_refused_by_the_brokers(broker: str, tmp_path: Path) -> None:
    """However late it comes out of a queue: compaction keeps the last writer's entries."""
    fleet = Fleet(broker, partitions=1)
    acknowledged: list[str] = []
    with ThreadPoolExecutor(4) as executor:
        first = await Partition.open(_opening(fleet, tmp_path / "1", "first", executor), 0, lambda: False)
        second = await Partition.open(_opening(fleet, tmp_path / "2", "second", executor), 0, lambda: False)
        assert not await first.still_owned()
        assert await second.still_owned()
        await until_async(lambda: first.lost is not None, "the first knows")
        refused = first.take(Topic.HOOKS, 0, AT, hooks("late"), lambda: acknowledged.append("late"))
        assert refused is None
        assert second.take(Topic.HOOKS, 0, AT, hooks("mine"), lambda: acknowledged.append("mine")) is not None
        assert await second.sender.drained(60)
        await first.close()
        await second.close()
    assert acknowledged == ["mine"]
    entries = await asyncio.to_thread(fleet.read, fleet.names.changelog)
    assert not any(b"late" in (entry.value or b"") for entry in entries)


def _opening(fleet: Fleet, folder: Path, owner: str, executor: ThreadPoolExecutor) -> Opening:
    node = msgspec.structs.replace(fleet.config.node, data_dir=str(folder))
    return Opening(msgspec.structs.replace(fleet.config, node=node), owner, Tables, executor, IdReader(fleet.config))


def test_standbys_are_off(broker: str, tmp_path: Path) -> None:
    """Faust's own follow a changelog record by record, and there is one by default."""
    app = build_app(Fleet(broker).config, Membership(), lambda topic, number: None)
    assert app.conf.table_standby_replicas == 0
    assert app.conf.processing_guarantee.value == "at_least_once"


def test_the_transport_is_aiokafka(broker: str) -> None:
    """Others have come and gone; one of them ran and processed nothing."""
    app = build_app(Fleet(broker).config, Membership(), lambda topic, number: None)
    assert isinstance(app.transport, Transport)


PRIVATE = {
    TableManager: {
        "_recovery": None,
        "recovery": None,
        "_changelogs": None,
        "on_start": "(self) -> None",
        "_update_channels": "(self) -> None",
    },
    Recovery: {
        "need_recovery": "(self) -> bool",
        "on_recovery_completed": "(self, generation_id: int = 0) -> None",
        "_build_highwaters": "(self, consumer, tps, destination, title)",
        "_build_offsets": "(self, consumer, tps, destination, title)",
        "_seek_offsets": "(self, consumer, tps, offsets, title)",
        "flush_buffers": "(self) -> None",
    },
}


@pytest.mark.parametrize(("kind", "name"), [(kind, name) for kind, names in PRIVATE.items() for name in names])
def test_what_is_overridden_is_in_the_installed_faust(kind: type, name: str) -> None:
    """An upgrade that moves one of these must say so here, not in production."""
    assert name in {*vars(kind), *getattr(kind, "__annotations__", {})}, f"{kind.__name__}.{name}"
    signature = PRIVATE[kind][name]
    if signature is not None:
        wanted = [part.split(":")[0].strip() for part in signature[1 : signature.index(")")].split(",")]
        assert list(inspect.signature(getattr(kind, name)).parameters) == wanted


def test_recovery_calls_what_is_overridden_in_this_order() -> None:
    """`need_recovery` is asked after the offsets are built, and completion is awaited without a time limit."""
    source = inspect.getsource(Recovery._restart_recovery.fun)
    places_ = [source.index(f"self.{name}") for name in ("_build_highwaters", "_build_offsets", "_seek_offsets")]
    assert places_ == sorted(places_)
    assert "await self._wait(T(self.on_recovery_completed)(generation_id))" in source
    assert "if self.need_recovery():" in source


def test_faust_is_the_version_this_was_written_for() -> None:
    import faust

    assert faust.__version__ == "0.15.3"


@in_loop
async def test_a_worker_that_asks_the_brokers_about_its_partitions_ends_when_it_is_told_to(
    broker: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It asks as the group has changed, by a transaction, which takes for as long as brokers are away."""
    fleet = Fleet(broker, partitions=2)
    async with worker(fleet, tmp_path / "worker") as running:
        await owned(running, 2)
        assert await running.owned.still_owned(0)
        gate = Gate(monkeypatch)
        other = WorkerProcess(fleet, tmp_path / "other")
        try:
            assert await asyncio.to_thread(gate.arrived.wait, 60)
            with monkeypatch.context() as patch:
                patch.setattr(running.app, "stop", asyncio.Event().wait)  # as without brokers
                began = time.monotonic()
                await running.stop()
                assert time.monotonic() - began < ENDS_S
        finally:
            gate.open()
            other.kill()


@in_loop
async def test_a_partition_that_comes_back_while_it_is_being_closed_is_opened_after_that(
    broker: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where whoever closes it is cancelled, as Faust does when the group changes again."""
    fleet = Fleet(broker, partitions=1)
    async with worker(fleet, tmp_path) as running:
        await owned(running, 1)
        store, goes_on, close = running.table.store, asyncio.Event(), Sender.close

        async def closes(sender: Sender, within_s: float) -> None:
            await goes_on.wait()
            await close(sender, within_s)

        monkeypatch.setattr(Sender, "close", closes)
        gone = asyncio.ensure_future(store._close([0]))
        await until_async(lambda: not store.partitions, "it is being closed")
        gone.cancel()
        comes = asyncio.ensure_future(store.take({0}, lambda: False))
        await asyncio.wait({comes}, timeout=3)
        goes_on.set()
        await comes
        assert 0 in store.partitions
