"""The embedded log: an append and its fold are one RocksDB batch (spec 08).

Owns offsets, log time and the order of writing: (1) fold the record against the tables, (2) put the record and the
fold's operations into one batch, (3) write it, (4) for what must be durable wait for an fsync, (5) announce its rows.
Until step 5 a commit's offset is in `undurable`, and no row of it may be claimed; if step 4 fails it is taken back
before anything else is served, since its edge was told that nothing is stored. Log time never runs backwards,
whatever the clock does. Never dispatches and never talks to a socket.
"""

from __future__ import annotations

import asyncio
import struct
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from ankusa.clock import SteadyClock
from ankusa.core import fold
from ankusa.core import ops as operations
from ankusa.core.set_up import DropRecord, entry_of, fold_set_up
from ankusa.store import keys
from ankusa.store.database import Batch
from ankusa.store.errors import StoreError
from ankusa.store.recent import NO_ROWS, due_rows
from ankusa.store.tables import Applied, Tables
from schemas import records
from schemas.records import (
    Change,
    CheckIn,
    Envelope,
    Held,
    JobRecord,
    LimitChange,
    OutcomeRecord,
    Purge,
    RouteRecord,
    RowState,
    SourceChange,
    Topic,
)
from streams.local.flusher import Flusher

_NEXT = struct.Struct(">QQ")
_COMMIT_HEAD = struct.Struct(">H")


class LocalLog:
    """One open log. `wall` gives unix ms, `monotonic` seconds. All methods run on the event loop's thread."""

    def __init__(self, path: Path, wall: Callable[[], int], monotonic: Callable[[], float] = time.monotonic) -> None:
        self.path = path
        self.tables = Tables(path)
        self._read_next()
        self._clock = SteadyClock(self._last_at, wall, monotonic)
        self._flusher = Flusher(lambda: self.tables.database.flush())
        self.unavailable: str | None = None
        self.low_space: str | None = None
        self._undo: list[operations.Op] = []
        self._fsync_failed = False
        self.undurable: set[int] = set()
        self.on_rows: Callable[[], None] = lambda: None

    def _read_next(self) -> None:
        stored = self.tables.database.get("meta", b"next")
        offset, at = _NEXT.unpack(stored) if stored else (1, 0)
        self.next_offset, self._last_at = int(offset), int(at)

    def now(self) -> int:
        """Log time, unix ms: the wall clock's, but never before the last record."""
        return max(self._clock(), self._last_at)

    @property
    def refusing(self) -> str | None:
        """Why nothing new is accepted, None while all is well. `low_space` alone still lets outcomes be written."""
        return self.unavailable or self.low_space

    # -- appending ----------------------------------------------------------

    async def commit(
        self, hooks: Sequence[tuple[Envelope, bytes, bytes]], holds: Sequence[tuple[Held, bytes, bytes]]
    ) -> list[fold.Accepted | fold.Duplicate]:
        """Store hooks `(envelope, its bytes, body)` and held hooks as one durable batch; one answer per hook.

        Raises StoreError when it could not be made durable: then nothing of it is stored, or will be after recovery.
        """
        at, offset = self.now(), self.next_offset
        ops, answers = fold.fold_commit(offset, at, hooks, self.tables) if hooks else ([], [])
        batch_records: list[tuple[Topic, bytes]] = []
        if hooks:
            batch_records.append((Topic.HOOKS, _COMMIT_HEAD.pack(len(hooks))))
        if holds:
            ops.extend(fold.fold_held(holds))
            batch_records.extend((Topic.QUARANTINE, records.encode(held_bytes)) for _, held_bytes, _ in holds)
        applied = self._write(batch_records, ops, at, undo=ops)
        self._remember(hooks, answers, ops)
        await self._durable(offset, applied, undo=ops)
        return answers

    def _remember(
        self,
        hooks: Sequence[tuple[Envelope, bytes, bytes]],
        answers: Sequence[fold.Accepted | fold.Duplicate],
        ops: Sequence[operations.Op],
    ) -> None:
        rows = due_rows(ops)
        for (envelope, envelope_bytes, body), answer in zip(hooks, answers, strict=True):
            if type(answer) is fold.Accepted:
                seq, size_bytes = answer.seq, len(envelope_bytes) + len(body)
                self.tables.recent.keep(seq, envelope, body, rows.get(seq, NO_ROWS), size_bytes)

    def publish(self, record: OutcomeRecord, row_of: fold.Tables | None = None) -> None:
        """Append outcomes or a replay page. Not durable by itself: losing it means redelivery, never loss."""
        at = self.now()
        ops = fold.fold_outcomes(record, self.next_offset, at, self.tables if row_of is None else row_of)
        self._write([(Topic.OUTCOMES, records.encode(record))], ops, at, new=False).announce()
        self.on_rows()

    async def check_in(self, record: CheckIn) -> None:
        """Append what the claim check stored, durably: a reference that was sent must outlive a crash."""
        at, offset = self.now(), self.next_offset
        ops = fold.fold_outcomes(record, offset, at, self.tables)
        applied = self._write([(Topic.OUTCOMES, records.encode(record))], ops, at, new=False)
        await self._durable(offset, applied)

    async def command(self, record: JobRecord) -> None:
        """Append a replay command, durably."""
        offset, ops = self.next_offset, fold.fold_job(record, self.tables)
        undo = ops if isinstance(record, records.JobStart) else []
        applied = self._write([(Topic.REPLAYS, records.encode(record))], ops, self.now(), undo=undo)
        await self._durable(offset, applied, undo=undo)

    async def purge(self, record: Purge) -> None:
        """Delete pen entries, durably."""
        offset, ops = self.next_offset, fold.fold_purge(record)
        applied = self._write([(Topic.QUARANTINE, records.encode(record))], ops, self.now())
        await self._durable(offset, applied)

    async def limit(self, record: LimitChange) -> None:
        """Set or take back a tenant's ingest limit, durably."""
        offset, ops = self.next_offset, fold.fold_limit(record)
        applied = self._write([(Topic.LIMITS, records.encode(record))], ops, self.now())
        await self._durable(offset, applied)

    async def change(self, record: SourceChange | RouteRecord, audit: Change | None) -> None:
        """Change a source, a route or the ip rules, with the audit record of it, durably."""
        offset = self.next_offset
        topic, table, key = entry_of(record)
        ops = fold_set_up(record, self.tables.set_up_entry(table, key))
        batch_records = [(topic, records.encode(record))]
        if audit is not None:
            batch_records.append((Topic.AUDIT, records.encode(audit)))
        undo: list[operations.Op] = [*ops]
        undo += [DropRecord(one, offset + place) for place, (one, _) in enumerate(batch_records)]
        applied = self._write(batch_records, ops, self.now(), undo=undo)
        await self._durable(offset, applied, undo=undo)

    def _write(
        self,
        batch_records: Sequence[tuple[Topic, bytes]],
        ops: Sequence[operations.Op],
        at: int,
        *,
        new: bool = True,
        undo: Sequence[operations.Op] = (),
    ) -> Applied:
        """Steps 2 and 3. `new` marks what is refused already while space is low. `undo` is taken back at recovery when
        the store refuses: the batch may have reached it all the same."""
        refusing = self.refusing if new else self.unavailable
        if refusing is not None:
            raise StoreError(refusing)
        database = self.tables.database
        batch = database.batch()
        stamp = keys.u64(at)
        for topic, payload in batch_records:
            batch.put(keys.log_key(topic, self.next_offset), stamp + payload, database.handles["log"])
            self.next_offset += 1
        batch.put(b"next", _NEXT.pack(self.next_offset, at), database.handles["meta"])
        applied = self.tables.apply(batch, ops)
        try:
            database.write(batch)
        except StoreError as error:
            self._take_back_later(undo, error)
            raise
        self._last_at = at
        applied.written()
        return applied

    async def _durable(self, offset: int, applied: Applied, *, undo: Sequence[operations.Op] = ()) -> None:
        """Steps 4 and 5, carried to their end although the caller is cancelled: what is stored is announced or taken
        back."""
        self.undurable.add(offset)
        await asyncio.shield(self._settle(offset, applied, undo))

    async def _settle(self, offset: int, applied: Applied, undo: Sequence[operations.Op]) -> None:
        try:
            await self._flusher.wait()
            if self._fsync_failed:
                # An fsync that succeeds after one that failed vouches for nothing, and a duplicate was answered with
                # the id of a hook that may be among those taken back.
                raise StoreError(self.unavailable or "an earlier fsync failed")
        except StoreError as error:
            self._fsync_failed = True
            self._take_back_later(undo, error)
            raise
        finally:
            self.undurable.discard(offset)
        applied.announce()
        self._announce_promoted(undo)
        self.on_rows()

    def _announce_promoted(self, ops: Sequence[operations.Op]) -> None:
        """Members that became heads before they were durable: the scan has passed over them as not to be claimed."""
        for op in ops:
            if type(op) is operations.PutRow and op.row is not None and op.row.state is RowState.MEMBER:
                row = self.tables.row(op.seq, op.sink)
                if row is not None and row.state is RowState.PENDING:
                    key = keys.due_key(row.replay_id is not None, row.tenant_id, row.at, op.seq, op.sink)
                    self.tables.live.added(row.tenant_id, row.at, key)

    def _take_back_later(self, ops: Sequence[operations.Op], error: StoreError) -> None:
        self._undo[:0] = fold.undo(ops)  # the latest is taken back first
        self.fail(str(error))

    # -- trouble --------------------------------------------------------------

    def fail(self, reason: str) -> None:
        """Refuse every write from now on, for `reason`, until `recover`. The first reason stands."""
        if self.unavailable is None:
            self.unavailable = reason

    def recover(self) -> None:
        """Open the store again and take back what was refused. Raises StoreError while that cannot be done."""
        if self.undurable:
            raise StoreError("an fsync is still running")
        self.tables.close()
        self.tables = Tables(self.path)
        self._read_next()
        if self._undo:
            at = self.now()
            database = self.tables.database
            batch = database.batch()
            batch.put(b"next", _NEXT.pack(self.next_offset, at), database.handles["meta"])
            ops = fold.take_back(self._stored(self._undo), at, self.tables)
            applied = self.tables.apply(batch, ops)
            database.write(batch)
            database.flush()
            applied.written()
            self._undo = []
        self._fsync_failed = False
        self.unavailable = None
        self.on_rows()

    def _stored(self, ops: Sequence[operations.Op]) -> Iterator[operations.Op]:
        """Of operations that take something back, those whose object did reach the store. (Rows are `take_back`'s.)"""
        for op in ops:
            if isinstance(op, operations.DropHeld):
                key = keys.pen_key(op.received_at, op.hook_id)
                if self.tables.database.get("pen", key) is None:
                    continue
            yield op

    def close(self) -> None:
        """Make everything durable that can be, and release the store."""
        self._flusher.close()
        try:
            if self.unavailable is None:
                self.tables.database.flush()
        finally:
            self.tables.close()

    # -- reclaiming -------------------------------------------------------------

    def drop(self, gone: Sequence[tuple[str, bytes]]) -> None:
        """Delete `(family, key)` entries that nothing needs any more."""
        batch = self.tables.database.batch()
        for family, key in gone:
            batch.delete(key, self.tables.database.handles[family])
        self._maintain(batch)

    def drop_range(self, family: str, start: bytes, end: bytes) -> None:
        """Delete every key of `family` in [start, end)."""
        batch = self.tables.database.batch()
        batch.delete_range(start, end, self.tables.database.handles[family])
        self._maintain(batch)

    def _maintain(self, batch: Batch) -> None:
        if self.unavailable is not None:
            raise StoreError(self.unavailable)
        try:
            self.tables.database.write(batch)
        except StoreError as error:
            self.fail(str(error))
            raise

    # -- reading --------------------------------------------------------------

    def read(self, topic: Topic, start: int = 0) -> Iterator[tuple[int, int, bytes]]:
        """`(offset, log time, record)` from offset `start` on. A commit's record is put together from its hooks; each
        keeps its place, and one that was a repeat or is not stored any more is an empty envelope."""
        database = self.tables.database
        for key, value in database.items("log", keys.log_key(topic, start), keys.log_key(topic + 1, 0)):
            offset = keys.log_offset(key)
            at, payload = keys.read_u64(value), value[8:]
            yield offset, at, self._commit(offset, at) if topic is Topic.HOOKS else payload

    def _commit(self, offset: int, at: int) -> bytes:
        start, end = keys.u64(records.seq_of(offset, 0)), keys.u64(records.seq_of(offset + 1, 0))
        hooks: list[tuple[bytes, bytes]] = []
        for key, value in self.tables.database.items("hooks", start, end):
            place = keys.read_u64(key) - records.seq_of(offset, 0)
            hooks.extend([(b"", b"")] * (place - len(hooks)))
            hooks.append(records.unframe_hook(value))
        return records.encode_commit(at, hooks)

    def offset_at(self, topic: Topic, at: int) -> int:
        """The offset of the first record of `topic` with log time at or after `at`, else `next_offset`."""
        low, high = 0, self.next_offset
        end = keys.log_key(topic + 1, 0)
        while low < high:
            middle = (low + high) // 2
            item = next(self.tables.database.items("log", keys.log_key(topic, middle), end), None)
            if item is None or keys.read_u64(item[1]) >= at:
                high = middle
            else:
                low = keys.log_offset(item[0]) + 1
        first = self.tables.database.first_key("log", keys.log_key(topic, low), end)
        return self.next_offset if first is None else keys.log_offset(first)
