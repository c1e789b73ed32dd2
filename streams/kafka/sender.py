"""One partition's changelog producer: what the fold did, in transactions that only the partition's owner can commit.

A transaction holds whole records, so a reader never sees half of one. Its id is the partition's: when the next owner
begins, the brokers refuse this one for good, whatever it still had in its queue when it was paused. An event is
acknowledged only when the transaction with its entries is committed.

Owns the queue between the fold and the broker, its bound, and what to do when a broker is away: wait. Never folds.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Executor

from confluent_kafka import KafkaError, KafkaException, Message, Producer
from msgspec import Struct

from ankusa.store.errors import StoreError
from schemas.config import Config
from streams.kafka.changelog import Entry
from streams.kafka.clients import Settings, client_log, client_settings
from streams.kafka.topics import TopicNames, hook_record_bytes

log = logging.getLogger("ankusa.kafka")

TRANSACTION_ENTRIES = 8192
TRANSACTION_BYTES = 4 << 20
"""A transaction takes the records that wait, up to these: some tens of milliseconds of work, and what a partition may
hold in librdkafka's queue."""

QUEUE_BYTES = 16 << 20
"""Entries that wait for their transaction. Past it the fold of the partition waits: the store is as far ahead of its
changelog as this allows."""

TRANSACTION_TIMEOUT_MS = 600_000
"""When the brokers end a transaction that nobody ends. Long, so that one survives brokers that are away for minutes;
the next owner ends it at once."""

CALL_S = 10.0
"""One attempt of a call that waits for a broker; it is tried again for as long as the partition is owned. A process
that ends waits for one that is under way."""

RETRY_S = 0.2
OVERHEAD_BYTES = 64 << 10

Acknowledge = Callable[[], object]


class ChangelogLostError(StoreError):
    """The changelog takes nothing more from this process: another one owns the partition, or nobody can write."""


class _Waiting(Struct):
    turn: int
    entries: Sequence[Entry]
    size_bytes: int
    acknowledge: Acknowledge


def sender_settings(config: Config, partition: int) -> Settings:
    """For librdkafka. The transactional id is the partition's alone, in the whole fleet."""
    prefix = config.kafka.prefix
    return client_settings(config.kafka, f"changelog-{partition}") | {
        "transactional.id": f"{prefix}changelog-{partition}",
        "transaction.timeout.ms": TRANSACTION_TIMEOUT_MS,
        "message.timeout.ms": TRANSACTION_TIMEOUT_MS,
        "linger.ms": 0,  # a transaction has gathered already, and is flushed
        "batch.size": 1_000_000,
        # The group's consumer may be handed records of the changelog amid a rebalance; it drops them, but one that it
        # cannot decompress ends the worker, and without more libraries it knows gzip alone.
        "compression.type": "none",
        "message.max.bytes": hook_record_bytes(config) + OVERHEAD_BYTES,
        "queue.buffering.max.messages": 0,
        "queue.buffering.max.kbytes": 1 << 20,
        "statistics.interval.ms": 0,
    }


class Sender:
    """The changelog of one partition. `sent(first turn, last turn, following offset)` hears of each transaction."""

    def __init__(self, config: Config, partition: int, executor: Executor) -> None:
        self._topic = TopicNames(config.kafka.prefix).changelog
        self._partition = partition
        self._executor = executor
        self._producer = Producer(sender_settings(config, partition), logger=client_log)
        self._opening: list[Entry] = []
        self._probes: list[asyncio.Future[bool]] = []
        self._queue: deque[_Waiting] = deque()
        self._queued_bytes = 0
        self._changed = asyncio.Event()
        self._room = asyncio.Event()
        self._room.set()
        self._idle = asyncio.Event()
        self._idle.set()
        self._task: asyncio.Task[None] | None = None
        self._closing = False
        self._offset = -1
        self.failed: str | None = None
        self.turn = 0
        """The last turn that the changelog has."""
        self.lost: Callable[[str], None] = lambda reason: None

    # -- owning -----------------------------------------------------------------

    def fence(self, cancelled: Callable[[], bool]) -> None:
        """Refuse every owner of before, in the brokers. Blocks until one answers: for a thread. Raises
        ChangelogLostError when that will never be, or it is `cancelled`."""
        while not cancelled():
            try:
                self._producer.init_transactions(CALL_S)
            except KafkaException as error:
                if not _retriable(error):
                    raise ChangelogLostError(f"{self._topic}[{self._partition}]: {error.args[0]}") from error
                log.warning("event=changelog_waits partition=%d reason=%s", self._partition, error.args[0])
                time.sleep(RETRY_S)
            else:
                return
        raise ChangelogLostError(f"{self._topic}[{self._partition}]: given up before it was owned")

    def start(self, turn: int, opening: Entry, sent: Callable[[int, int, int], None]) -> None:
        """Send from now on. The changelog has everything up to `turn`; `opening` goes before everything else."""
        self.turn = turn
        self._opening = [opening]
        self._sent = sent
        self._task = asyncio.get_running_loop().create_task(self._run())

    # -- the fold's side ----------------------------------------------------------

    def add(self, turn: int, entries: Sequence[Entry], acknowledge: Acknowledge) -> None:
        """Send a record's entries; `acknowledge` when the changelog has everything up to its turn. One without entries
        (it was folded before) waits for what is before it. Raises ChangelogLostError."""
        if self.failed is not None:
            raise ChangelogLostError(self.failed)
        size_bytes = sum(len(key) + len(value or b"") + 32 for key, value in entries)
        self._queue.append(_Waiting(turn, entries, size_bytes, acknowledge))
        self._queued_bytes += size_bytes
        if self._queued_bytes > QUEUE_BYTES:
            self._room.clear()
        self._idle.clear()
        self._changed.set()

    async def room_or_lost(self) -> None:
        """Wait until more may be added, or nothing more ever."""
        await self._room.wait()

    async def probe(self, entry: Entry) -> bool:
        """Commit `entry` after all that waits; whether that could be done: another owner would have fenced this one."""
        if self.failed is not None:
            return False
        answered: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._probes.append(answered)
        self._opening = self._opening or [entry]
        self._changed.set()
        return await answered

    async def drained(self, within_s: float) -> bool:
        """Wait until nothing is left to send; False when that takes longer."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._idle.wait(), within_s)
        return self.failed is None and not self._queue

    @property
    def waiting(self) -> int:
        """Records that wait for their transaction, or for its end."""
        return len(self._queue)

    # -- the broker's side ----------------------------------------------------------

    async def _run(self) -> None:
        try:
            while True:
                await self._changed.wait()
                self._changed.clear()
                while (batch := self._next()) or self._probes:
                    await self._send(batch)
        except ChangelogLostError as error:
            self._fail(str(error))
        except StoreError as error:
            self._fail(f"the store refused to note what was sent: {error}")

    async def _send(self, batch: Sequence[_Waiting]) -> None:
        """One transaction of the records of `batch`: of none, where it is asked whether there may be one."""
        probes, self._probes = self._probes, []
        entries = [entry for waiting in batch for entry in waiting.entries]
        try:
            if entries or probes:
                opening, loop = self._opening, asyncio.get_running_loop()
                await loop.run_in_executor(self._executor, self._transact, [*opening, *entries])
                self._opening = []
            _answer(probes, True)
        finally:
            _answer(probes, False)
        self._settled(batch)

    def _next(self) -> list[_Waiting]:
        """The records of the next transaction: they stay in the queue until it is committed."""
        batch: list[_Waiting] = []
        entries = size_bytes = 0
        for waiting in self._queue:
            entries, size_bytes = entries + len(waiting.entries), size_bytes + waiting.size_bytes
            if batch and (entries > TRANSACTION_ENTRIES or size_bytes > TRANSACTION_BYTES):
                break
            batch.append(waiting)
        return batch

    def _settled(self, batch: Sequence[_Waiting]) -> None:
        turns = [waiting.turn for waiting in batch if waiting.entries]
        if turns:
            self._sent(turns[0], turns[-1], self._offset + 1)
            self.turn = turns[-1]
        for waiting in batch:
            self._queue.popleft()
            self._queued_bytes -= waiting.size_bytes
            waiting.acknowledge()
        if self._queued_bytes <= QUEUE_BYTES:
            self._room.set()
        if not self._queue:
            self._idle.set()

    def _fail(self, reason: str) -> None:
        if self.failed is None:
            self.failed = reason
            self._room.set()
            self._idle.set()
            _answer(self._probes, False)
            self.lost(reason)

    # -- in a thread -----------------------------------------------------------------

    def _transact(self, entries: Sequence[Entry]) -> None:
        """Commit `entries` as one transaction, however often it takes. Raises ChangelogLostError."""
        while not self._closing:
            try:
                self._attempt(entries)
            except KafkaException as error:
                self._undo(error)
                time.sleep(RETRY_S)
            else:
                return
        raise ChangelogLostError(f"{self._topic}[{self._partition}]: closed")

    def _attempt(self, entries: Sequence[Entry]) -> None:
        producer, topic, partition = self._producer, self._topic, self._partition
        producer.begin_transaction()
        last = len(entries) - 1
        for place, (key, value) in enumerate(entries):
            if place == last:
                producer.produce(topic, value, key, partition, on_delivery=self._delivered)
            else:
                producer.produce(topic, value, key, partition)
        while producer.flush(CALL_S):
            if self._closing:
                raise ChangelogLostError(f"{topic}[{partition}]: closed")
        while True:
            try:
                producer.commit_transaction(CALL_S)
            except KafkaException as error:
                if self._closing or not _retriable(error):
                    raise
            else:
                return

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        if error is None:
            offset = message.offset()
            assert offset is not None
            self._offset = offset

    def _undo(self, error: KafkaException) -> None:
        """Give an attempt up, so that it can be made again. Raises ChangelogLostError when it cannot."""
        reason = error.args[0]
        if not isinstance(reason, KafkaError) or reason.fatal():
            raise ChangelogLostError(f"{self._topic}[{self._partition}]: {reason}") from error
        log.warning("event=changelog_again partition=%d reason=%s", self._partition, reason)
        while not self._closing:
            try:
                self._producer.abort_transaction(CALL_S)
            except KafkaException as refused:
                if not _retriable(refused):
                    raise ChangelogLostError(f"{self._topic}[{self._partition}]: {refused.args[0]}") from refused
            else:
                return

    async def close(self, within_s: float) -> None:
        """Send what waits, as far as that goes within `within_s`; then nothing more, and nobody hears of it."""
        await self.drained(within_s)
        self._closing = True
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        self.failed = self.failed or "closed"
        self._room.set()
        self._queue.clear()
        _answer(self._probes, False)


def _answer(probes: Sequence[asyncio.Future[bool]], owned: bool) -> None:
    for probe in probes:
        if not probe.done():
            probe.set_result(owned)


def _retriable(error: KafkaException) -> bool:
    reason = error.args[0]
    return isinstance(reason, KafkaError) and reason.retriable() and not reason.fatal()
