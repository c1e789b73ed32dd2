"""How an operation becomes keys in a batch. The one place that knows what each operation writes.

Fills a batch and remembers what memory must learn once it is written; never writes it, never decides what to write.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from ankusa.core import ops
from ankusa.core.set_up import DropRecord, PutEntry
from ankusa.store import keys
from ankusa.store.counts import LANES, PEN
from ankusa.store.database import Target
from schemas import records
from schemas.records import BreakerState, Row, RowState


class Writer:
    """One batch being filled: the keys of each operation, and what memory must learn when it is written."""

    __slots__ = ("added", "batch", "changed", "changes", "handles", "settled")

    def __init__(self, batch: Target, handles: Mapping[str, Any]) -> None:
        """`handles` are the families'. `changes` are of counts by sink key, `added` due keys by class and tenant,
        `settled` seqs of which a row has gone, `changed` places of rows that are others now."""
        self.batch = batch
        self.handles = handles
        self.changes: dict[str, list[int]] = {}
        self.added: list[tuple[bool, str, int, bytes]] = []
        self.settled: list[int] = []
        self.changed: list[tuple[int, int]] = []

    def write(self, given: Iterable[ops.Op]) -> None:
        for op in given:
            _WRITE[type(op)](self, op)

    def put_hook(self, op: ops.PutHook) -> None:
        key = keys.u64(op.seq)
        self.batch.put(key, records.frame_hook(op.envelope, op.body), self.handles["hooks"])
        self.batch.put(op.hook_id.encode(), key, self.handles["ids"])

    def drop_hook(self, op: ops.DropHook) -> None:
        self.batch.delete(keys.u64(op.seq), self.handles["hooks"])
        self.batch.delete(op.hook_id.encode(), self.handles["ids"])
        self.settled.append(op.seq)

    def put_row(self, op: ops.PutRow) -> None:
        seq, sink, row, was = op.seq, op.sink, op.row, op.was
        if was is not None:
            self._unplace(seq, sink, was)
        row_key = keys.row_key(seq, sink)
        if row is None:
            self.batch.delete(row_key, self.handles["rows"])
            self.settled.append(seq)
            return
        self.batch.put(row_key, records.encode(row), self.handles["rows"])
        self._count(sink, row, 1)
        if row.state is RowState.DEAD:
            self.batch.put(keys.dead_key(row.at, seq, sink), b"", self.handles["dead"])
            self.settled.append(seq)
            return
        if was is not None:
            self.changed.append((seq, sink))
        if row.state is RowState.MEMBER:
            assert row.lane is not None
            self.batch.put(keys.member_key(row.lane, row.place, seq), b"", self.handles["members"])
            self.changes.setdefault(LANES, [0, 0, 0])[1] += 1
            return
        replayed = row.replay_id is not None
        key = keys.due_key(replayed, row.tenant_id, row.at, seq, sink)
        self.batch.put(key, b"", self.handles["due"])
        self.added.append((replayed, row.tenant_id, row.at, key))

    def _unplace(self, seq: int, sink: int, was: Row) -> None:
        self._count(sink, was, -1)
        if was.state is RowState.DEAD:
            self.batch.delete(keys.dead_key(was.at, seq, sink), self.handles["dead"])
        elif was.state is RowState.MEMBER:
            assert was.lane is not None
            self.batch.delete(keys.member_key(was.lane, was.place, seq), self.handles["members"])
            self.changes.setdefault(LANES, [0, 0, 0])[1] -= 1
        else:
            key = keys.due_key(was.replay_id is not None, was.tenant_id, was.at, seq, sink)
            self.batch.delete(key, self.handles["due"])

    def _count(self, sink: int, row: Row, change: int) -> None:
        key = records.sink_key(row.tenant_id, row.source_id, sink, row.sink_type)
        counts = self.changes.get(key)
        if counts is None:
            counts = self.changes[key] = [0, 0, 0]
        place = 2 if row.state is RowState.DEAD else 1 if row.replay_id is not None else 0
        counts[place] += change

    def put_attempt(self, op: ops.PutAttempt) -> None:
        key = keys.attempt_key(op.seq, op.sink, op.generation)
        self.batch.put(key, records.encode(op.attempt), self.handles["attempts"])

    def put_dedupe(self, op: ops.PutDedupe) -> None:
        if op.was_expires_at is not None:
            self.batch.delete(keys.expiry_key(op.was_expires_at, op.key), self.handles["expiry"])
        self.batch.put(op.key.encode(), keys.u64(op.expires_at) + op.hook_id.encode(), self.handles["dedupe"])
        self.batch.put(keys.expiry_key(op.expires_at, op.key), b"", self.handles["expiry"])

    def drop_dedupe(self, op: ops.DropDedupe) -> None:
        self.batch.delete(op.key.encode(), self.handles["dedupe"])
        self.batch.delete(keys.expiry_key(op.expires_at, op.key), self.handles["expiry"])

    def drop_job(self, op: ops.DropJob) -> None:
        self.batch.delete(op.job_id.encode(), self.handles["jobs"])

    def put_job(self, op: ops.PutJob) -> None:
        self.batch.put(op.job.id.encode(), records.encode(op.job), self.handles["jobs"])

    def put_lane(self, op: ops.PutLane) -> None:
        if op.lane is None:
            self.batch.delete(op.key.encode(), self.handles["lanes"])
        else:
            self.batch.put(op.key.encode(), records.encode(op.lane), self.handles["lanes"])
        self.changes.setdefault(LANES, [0, 0, 0])[0] += (op.lane is not None) - (op.was is not None)

    def put_breaker(self, op: ops.PutBreaker) -> None:
        key, breaker = op.key.encode(), op.breaker
        if breaker.state is BreakerState.CLOSED and not breaker.failures:
            self.batch.delete(key, self.handles["breakers"])
        else:
            self.batch.put(key, records.encode(breaker), self.handles["breakers"])

    def put_check_in(self, op: ops.PutCheckIn) -> None:
        value = op.position.to_bytes(2, "big") + op.pack.encode()
        self.batch.put(keys.u64(op.seq), value, self.handles["checkins"])

    def put_pack(self, op: ops.PutPack) -> None:
        self.batch.put(op.check_in.pack.encode(), records.encode(op.check_in), self.handles["packs"])

    def drop_check_in(self, op: ops.DropCheckIn) -> None:
        self.batch.delete(keys.u64(op.seq), self.handles["checkins"])

    def drop_pack(self, op: ops.DropPack) -> None:
        self.batch.delete(op.pack.encode(), self.handles["packs"])

    def put_held(self, op: ops.PutHeld) -> None:
        key = keys.pen_key(op.held.received_at, op.held.id)
        self.batch.put(key, records.frame_hook(op.envelope, op.body), self.handles["pen"])
        self._count_pen(1, ops.stored_bytes(op))

    def drop_held(self, op: ops.DropHeld) -> None:
        self.batch.delete(keys.pen_key(op.received_at, op.hook_id), self.handles["pen"])
        self._count_pen(-1, -op.size_bytes)

    def _count_pen(self, entries: int, size_bytes: int) -> None:
        counts = self.changes.setdefault(PEN, [0, 0, 0])
        counts[0] += entries
        counts[1] += size_bytes

    def drop_record(self, op: DropRecord) -> None:
        self.batch.delete(keys.log_key(op.topic, op.offset), self.handles["log"])

    def put_entry(self, op: PutEntry) -> None:
        if op.value is None:
            self.batch.delete(op.key.encode(), self.handles[op.table])
        else:
            self.batch.put(op.key.encode(), op.value, self.handles[op.table])

    def put_limit(self, op: ops.PutLimit) -> None:
        key = op.change.tenant_id.encode()
        if op.change.rate is None:
            self.batch.delete(key, self.handles["limits"])
        else:
            self.batch.put(key, records.encode(op.change), self.handles["limits"])


_WRITE: dict[type[Any], Callable[[Writer, Any], None]] = {
    ops.PutBreaker: Writer.put_breaker,
    ops.PutLane: Writer.put_lane,
    ops.PutHook: Writer.put_hook,
    ops.DropHook: Writer.drop_hook,
    ops.DropDedupe: Writer.drop_dedupe,
    ops.DropJob: Writer.drop_job,
    ops.PutRow: Writer.put_row,
    ops.PutAttempt: Writer.put_attempt,
    ops.PutDedupe: Writer.put_dedupe,
    ops.PutJob: Writer.put_job,
    ops.PutCheckIn: Writer.put_check_in,
    ops.PutPack: Writer.put_pack,
    ops.DropCheckIn: Writer.drop_check_in,
    ops.DropPack: Writer.drop_pack,
    ops.PutHeld: Writer.put_held,
    ops.DropHeld: Writer.drop_held,
    ops.PutLimit: Writer.put_limit,
    PutEntry: Writer.put_entry,
    DropRecord: Writer.drop_record,
}
