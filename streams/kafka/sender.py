"""What a partition's fold did on its way into the changelog: queued, sent in transactions, acknowledged.

A transaction holds whole records, so a reader never sees half of one. An event is acknowledged only when the
transaction with its entries is committed. Owns the queue between the fold and the brokers and its bound; the
transactions are `transactions.py`'s. Never folds.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Executor

from msgspec import Struct

from schemas.config import Config
from streams.kafka.changelog import Entry
from streams.kafka.transactions import ChangelogLostError, Transactions

log = logging.getLogger("ankusa.kafka")

TRANSACTION_ENTRIES = 8192
TRANSACTION_BYTES = 4 << 20
"""A transaction takes the records that wait, up to these: some tens of milliseconds of work, and what a partition may
hold in librdkafka's queue."""

GATHER_S = 0.05
"""Between two transactions of a partition while less than a whole one waits: one costs the brokers and this process the
same for one record as for a hundred. Nothing waits for it but the commit of offsets, a second apart."""

QUEUE_BYTES = 16 << 20
"""Entries that wait for their transaction. Past it nothing more of the partition is folded: its store is as far ahead
of the changelog as this allows, and by one record."""

Acknowledge = Callable[[], object]


class _Waiting(Struct):
    turn: int
    entries: Sequence[Entry]
    size_bytes: int
    acknowledge: Acknowledge


class Sender:
    """The changelog of one partition. `sent(first turn, last turn, following offset)` hears of each transaction."""

    def __init__(self, config: Config, partition: int, executor: Executor) -> None:
        self._partition = partition
        self._executor = executor
        self._transactions = Transactions(config, partition)
        self._opening: list[Entry] = []
        self._probes: list[asyncio.Future[bool]] = []
        self._queue: deque[_Waiting] = deque()
        self.queued_bytes = 0
        """Of entries that wait for their transaction, or for its end."""
        self._changed = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self._following = 0
        self._task: asyncio.Task[None] | None = None
        self.failed: str | None = None
        self.turn = 0
        """The last turn that the changelog has."""
        self.lost: Callable[[str], None] = lambda reason: None
        self.on_room: Callable[[], None] = lambda: None
        """Called soon after there is room again, where there was none."""

    def fence(self, cancelled: Callable[[], bool]) -> bool:
        """Refuse every owner of before: see `Transactions.fence`. For a thread."""
        return self._transactions.fence(cancelled)

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
        self.queued_bytes += size_bytes
        self._idle.clear()
        self._changed.set()

    @property
    def has_room(self) -> bool:
        """Whether more may be added. Always once it has failed: then `add` says so."""
        return self.failed is not None or self.queued_bytes <= QUEUE_BYTES

    async def probe(self, entry: Entry) -> bool:
        """Commit `entry` after all that waits; whether that could be done: another owner would have fenced this one."""
        if self.failed is not None:
            return False
        answered: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._probes.append(answered)
        self._opening = self._opening or [entry]
        self._changed.set()
        try:
            return await answered
        finally:
            if answered in self._probes:  # nobody waits for it any more
                self._probes.remove(answered)

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
                    if self.queued_bytes < TRANSACTION_BYTES:
                        await asyncio.sleep(GATHER_S)
        except ChangelogLostError as error:
            self._fail(str(error))
        except Exception as error:  # whatever it is: a sender that has ended must not look like one that waits
            log.exception("event=changelog_failed partition=%d", self._partition)
            self._fail(f"{type(error).__name__}: {error}")

    async def _send(self, batch: Sequence[_Waiting]) -> None:
        """One transaction of the records of `batch`: of none, where it is asked whether there may be one."""
        probes, self._probes = self._probes, []
        entries = [entry for waiting in batch for entry in waiting.entries]
        try:
            if entries or probes:
                # Before it is on its way: a probe that comes meanwhile is about a transaction of its own.
                opening, self._opening = self._opening, []
                commit, loop = self._transactions.commit, asyncio.get_running_loop()
                self._following = await loop.run_in_executor(self._executor, commit, [*opening, *entries])
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
        had_room = self.has_room
        turns = [waiting.turn for waiting in batch if waiting.entries]
        if turns:
            self._sent(turns[0], turns[-1], self._following)
            self.turn = turns[-1]
        for waiting in batch:
            self._queue.popleft()
            self.queued_bytes -= waiting.size_bytes
            waiting.acknowledge()
        self._tell_of_room(had_room)
        if not self._queue:
            self._idle.set()

    def _tell_of_room(self, had_room: bool) -> None:
        if self.has_room and not had_room:
            asyncio.get_running_loop().call_soon(self.on_room)

    def _fail(self, reason: str) -> None:
        if self.failed is None:
            had_room = self.has_room
            self.failed = reason
            self._tell_of_room(had_room)
            self._idle.set()
            _answer(self._probes, False)
            self.lost(reason)

    async def close(self, within_s: float) -> None:
        """Send what waits, as far as that goes within `within_s`; then nothing more, and nobody hears of it."""
        await self.drained(within_s)
        self._transactions.close()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        self.failed = self.failed or "closed"
        self._queue.clear()
        _answer(self._probes, False)
        # Not waited for, and not left to the last reference to this: callbacks, and failures' tracebacks, make cycles.
        self._executor.submit(self._transactions.release)


def _answer(probes: Sequence[asyncio.Future[bool]], owned: bool) -> None:
    for probe in probes:
        if not probe.done():
            probe.set_result(owned)
