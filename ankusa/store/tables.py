"""The tables: one database, the operations of a fold written as one batch, and the reads a fold and the API need.

Owns how an operation becomes keys, and the small state kept beside the database so that nobody has to scan for it:
the due indexes and the counts per sink key. Never decides what an operation should be.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from ankusa.core import fold
from ankusa.core.set_up import PutEntry, SetUpTable
from ankusa.store import keys
from ankusa.store.counts import LANES, PEN, Counts
from ankusa.store.database import Batch, Database
from ankusa.store.due import DueIndex
from ankusa.store.errors import StoreFormatError
from schemas import records
from schemas.records import FORMAT_VERSION, Attempt, Breaker, BreakerState, Job, Lane, LimitChange, Row, RowState

log = logging.getLogger("ankusa.store")

FAMILIES = (
    *("log", "hooks", "ids", "rows", "due", "dead", "attempts"),
    *("dedupe", "expiry", "jobs", "breakers", "lanes", "members", "pen", "limits", "counts", "meta"),
    *("sources", "routes"),
    *("checkins", "packs"),
)
CHURNING = ("rows", "due", "dead", "hooks", "expiry", "members", "pen")

RECENT_BYTES = 32 << 20
"""Hooks just stored stay in memory up to this much: most are delivered at once, and a read and decode is saved."""

RECENT_OVERHEAD_BYTES = 600
"""What a remembered hook costs beside its bytes: the envelope, its strings, a row."""


class Tables:
    """The tables of one store. Not thread-safe: one thread writes and reads, only `Database.flush` runs beside it."""

    def __init__(self, path: Path) -> None:
        self.database = Database(path, FAMILIES, blobs="hooks", churning=CHURNING)
        try:
            self._check_format()
            self.counts = Counts(self.database)
            self.live = DueIndex(self.database, keys.LIVE)
            self.replayed = DueIndex(self.database, keys.REPLAYED)
        except BaseException:
            self.database.close()
            raise
        self._recent: dict[int, tuple[records.Envelope, bytes]] = {}
        self._recent_rows: dict[tuple[int, int], Row] = {}
        self._recent_bytes = 0

    def _check_format(self) -> None:
        found = self.database.get("meta", b"format")
        if found is None:
            batch = self.database.batch()
            batch.put(b"format", str(FORMAT_VERSION).encode(), self.database.handles["meta"])
            self.database.write(batch)
        elif found != str(FORMAT_VERSION).encode():
            raise StoreFormatError(
                f"{self.database.path} holds format {found.decode(errors='replace')}, this release reads format "
                f"{FORMAT_VERSION}; run the release that wrote it, or give this node an empty node.data_dir"
            )

    # -- what a fold reads -------------------------------------------------

    def row(self, seq: int, sink: int) -> Row | None:
        stored = self.database.get("rows", keys.row_key(seq, sink))
        return None if stored is None else records.decode_row(stored)

    def job(self, job_id: str) -> Job | None:
        stored = self.database.get("jobs", job_id.encode())
        return None if stored is None else records.decode_job(stored)

    def breaker(self, key: str) -> Breaker | None:
        stored = self.database.get("breakers", key.encode())
        return None if stored is None else records.decode_breaker(stored)

    def lane(self, key: str) -> Lane | None:
        stored = self.database.get("lanes", key.encode())
        return None if stored is None else records.decode_lane(stored)

    def members(self, key: str) -> Iterator[tuple[int, int]]:
        """`(place, seq)` of a lane's members, in order."""
        prefix = keys.member_prefix(key)
        return (
            keys.split_member_key(found) for found in self.database.keys("members", prefix, keys.prefix_end(prefix))
        )

    def has_head(self, key: str) -> bool:
        """Whether a lane's head is a pending row, as it must be while a member waits."""
        lane = self.lane(key)
        head = None if lane is None else self.row(lane.head, int(key.split("/")[2]))
        return head is not None and head.state is RowState.PENDING and head.lane == key

    def lanes(self, start: str = "", limit: int = 100) -> list[tuple[str, Lane]]:
        """`(key, lane)` of up to `limit` lanes with rows, from key `start` on."""
        items = self.database.items("lanes", start.encode(), b"\xff")
        return [
            (key.decode(), records.decode_lane(value)) for (key, value), _ in zip(items, range(limit), strict=False)
        ]

    def lane_counts(self) -> tuple[int, int]:
        """`(lanes with rows, members waiting)`."""
        lanes, members, _ = self.counts.by_sink.get(LANES, (0, 0, 0))
        return lanes, members

    def breakers(self) -> dict[str, Breaker]:
        """Every breaker that is open or counts failures, by sink key text."""
        items = self.database.items("breakers", b"", b"\xff")
        return {key.decode(): records.decode_breaker(value) for key, value in items}

    def checked_in(self, seq: int) -> tuple[str, int] | None:
        """`(pack, position)` of a hook's body in the blob store, None when it was not checked in."""
        stored = self.database.get("checkins", keys.u64(seq))
        return None if stored is None else (stored[2:].decode(), int.from_bytes(stored[:2], "big"))

    def has_pack(self, pack: str) -> bool:
        """Whether a pack may be needed: a row of one of its hooks was left when it was last looked at."""
        return self.database.get("packs", pack.encode()) is not None

    def dedupe(self, key: str) -> tuple[str, int] | None:
        stored = self.database.get("dedupe", key.encode())
        return None if stored is None else (stored[8:].decode(), keys.read_u64(stored))

    # -- what the dispatcher and the API read ------------------------------

    def claim_rows(self, places: list[tuple[int, int]]) -> list[Row | None]:
        """The rows at `(seq, sink)`, in order; None where there is none, or where it does not decode: that one is named
        in the log and left where it is."""
        recent = self._recent_rows
        rows: list[Row | None] = [recent.pop(place, None) for place in places]
        missing = [index for index, row in enumerate(rows) if row is None]
        if missing:
            stored = self.database.get_many("rows", [keys.row_key(*places[index]) for index in missing])
            for index, value in zip(missing, stored, strict=True):
                rows[index] = None if value is None else _decoded(places[index], value)
        return rows

    def hook(self, seq: int) -> tuple[records.Envelope, bytes] | None:
        """A hook's envelope and body; None when it is not stored. Raises one of `records.DecodeError`."""
        recent = self._recent.get(seq)
        if recent is not None:
            return recent
        stored = self.database.get("hooks", keys.u64(seq))
        if stored is None:
            return None
        envelope, body = records.unframe_hook(stored)
        return records.decode_envelope(envelope), body

    def seq_of(self, hook_id: str) -> int | None:
        stored = self.database.get("ids", hook_id.encode())
        return None if stored is None else keys.read_u64(stored)

    def rows_of(self, seq: int) -> list[tuple[int, Row]]:
        """`(sink, row)` of a hook's rows that are not delivered."""
        items = self.database.items("rows", keys.u64(seq), keys.u64(seq + 1))
        return [(keys.split_row_key(key)[1], records.decode_row(value)) for key, value in items]

    def attempts_of(self, seq: int) -> list[tuple[int, int, Attempt]]:
        """`(sink, generation, attempt)` of a hook's history, by sink and then in order."""
        found = []
        for key, value in self.database.items("attempts", keys.u64(seq), keys.u64(seq + 1)):
            sink, generation = int.from_bytes(key[8:10], "big"), int.from_bytes(key[10:], "big")
            found.append((sink, generation, records.decode_attempt(value)))
        return found

    def dead_from(self, start: bytes, end: bytes) -> Iterator[bytes]:
        """Dead index keys in [start, end), oldest death first."""
        return self.database.keys("dead", start, end)

    def dead_back(self, start: bytes, end: bytes) -> Iterator[bytes]:
        """Dead index keys in [start, end), newest death first."""
        return (key for key, _ in self.database.items_back("dead", start, end))

    def jobs(self) -> list[Job]:
        """Every kept job, newest first."""
        found = [records.decode_job(value) for _, value in self.database.items("jobs", b"", b"\xff")]
        return sorted(found, key=lambda job: (job.created_at, job.sequence), reverse=True)

    def set_up(self, table: SetUpTable) -> dict[str, bytes]:
        """The entries of a table of what operators set up, by key."""
        return {key.decode(): value for key, value in self.database.items(table, b"", b"\xff")}

    def set_up_entry(self, table: SetUpTable, key: str) -> bytes | None:
        return self.database.get(table, key.encode())

    def limits(self) -> dict[str, LimitChange]:
        """Overrides by tenant."""
        items = self.database.items("limits", b"", b"\xff")
        return {key.decode(): records.decode_limit_change(value) for key, value in items}

    def pen_size(self) -> tuple[int, int]:
        """`(entries, bytes)` held."""
        entries, size_bytes, _ = self.counts.by_sink.get(PEN, (0, 0, 0))
        return entries, size_bytes

    def held(self, received_at: int, hook_id: str) -> bool:
        """Whether the pen holds this hook."""
        return self.database.get("pen", keys.pen_key(received_at, hook_id)) is not None

    def held_from(self, start: bytes, end: bytes) -> Iterator[tuple[bytes, records.Held, int]]:
        """`(key, held, stored bytes)` in [start, end), oldest first; entries that do not decode are left out."""
        return _held(self.database.items("pen", start, end))

    def held_back(self, start: bytes, end: bytes) -> Iterator[tuple[bytes, records.Held, int]]:
        """As `held_from`, newest first."""
        return _held(self.database.items_back("pen", start, end))

    # -- writing -----------------------------------------------------------

    def apply(self, batch: Batch, ops: Iterable[fold.Op]) -> Applied:
        """Put a fold's operations into `batch`. Once it is written, call the answer's `written`, then `announce`.

        What is kept in memory changes only then: a batch that RocksDB refuses must leave no trace here. A row is
        announced to the due index only when its hook is durable, or a hook could be delivered and then refused.
        """
        writer = _Writer(self, batch)
        for op in ops:
            _WRITE[type(op)](writer, op)
        self.counts.put(batch, writer.changes)
        return Applied(self, writer.changes, writer.added, writer.settled)

    def remember(self, seq: int, envelope: records.Envelope, body: bytes, rows: list[tuple[int, Row]]) -> None:
        """Keep a hook that was just stored in memory for its first attempts, and forget the oldest past the bound."""
        self._recent[seq] = (envelope, body)
        for sink, row in rows:
            self._recent_rows[seq, sink] = row
        self._recent_bytes += len(body) + RECENT_OVERHEAD_BYTES
        while self._recent_bytes > RECENT_BYTES:
            oldest = next(iter(self._recent))
            self.forget(oldest)

    def forget(self, seq: int) -> None:
        """A hook needs no memory any more: settled, or past the bound."""
        held = self._recent.pop(seq, None)
        if held is None:
            return
        self._recent_bytes -= len(held[1]) + RECENT_OVERHEAD_BYTES
        for sink in range(len(held[0].sinks)):
            self._recent_rows.pop((seq, sink), None)

    def close(self) -> None:
        self.database.close()


def _decoded(place: tuple[int, int], stored: bytes) -> Row | None:
    try:
        return records.decode_row(stored)
    except records.DecodeError as error:
        log.error("event=row_undecodable seq=%d sink=%d reason=%s", *place, error)
        return None


def _held(items: Iterable[tuple[bytes, bytes]]) -> Iterator[tuple[bytes, records.Held, int]]:
    for key, value in items:
        try:
            envelope, body = records.unframe_hook(value)
            yield key, records.decode_held(envelope), len(envelope) + len(body)
        except records.DecodeError:
            continue


class Applied:
    """What memory must learn of a batch: nothing of RocksDB, so that a late one never keeps a closed store's lock."""

    __slots__ = ("_added", "_changes", "_settled", "_tables")

    def __init__(
        self,
        tables: Tables,
        changes: dict[str, list[int]],
        added: list[tuple[bool, str, int, bytes]],
        settled: list[int],
    ) -> None:
        self._tables = tables
        self._changes = changes
        self._added = added
        self._settled = settled

    def written(self) -> None:
        """The batch is in the store."""
        self._tables.counts.written(self._changes)
        for seq in self._settled:
            self._tables.forget(seq)

    def announce(self) -> None:
        """Its pending rows may be claimed."""
        for replayed, tenant_id, due_at, key in self._added:
            (self._tables.replayed if replayed else self._tables.live).added(tenant_id, due_at, key)


class _Writer:
    """One batch being filled: the keys of each operation, and what memory must learn when it is written."""

    __slots__ = ("added", "batch", "changes", "handles", "settled", "tables")

    def __init__(self, tables: Tables, batch: Batch) -> None:
        self.tables = tables
        self.batch = batch
        self.handles = tables.database.handles
        self.changes: dict[str, list[int]] = {}
        self.added: list[tuple[bool, str, int, bytes]] = []
        self.settled: list[int] = []

    def put_hook(self, op: fold.PutHook) -> None:
        key = keys.u64(op.seq)
        self.batch.put(key, records.frame_hook(op.envelope, op.body), self.handles["hooks"])
        self.batch.put(op.hook_id.encode(), key, self.handles["ids"])

    def drop_hook(self, op: fold.DropHook) -> None:
        self.batch.delete(keys.u64(op.seq), self.handles["hooks"])
        self.batch.delete(op.hook_id.encode(), self.handles["ids"])
        self.settled.append(op.seq)

    def put_row(self, op: fold.PutRow) -> None:
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

    def put_attempt(self, op: fold.PutAttempt) -> None:
        key = keys.attempt_key(op.seq, op.sink, op.generation)
        self.batch.put(key, records.encode(op.attempt), self.handles["attempts"])

    def put_dedupe(self, op: fold.PutDedupe) -> None:
        if op.was_expires_at is not None:
            self.batch.delete(keys.expiry_key(op.was_expires_at, op.key), self.handles["expiry"])
        self.batch.put(op.key.encode(), keys.u64(op.expires_at) + op.hook_id.encode(), self.handles["dedupe"])
        self.batch.put(keys.expiry_key(op.expires_at, op.key), b"", self.handles["expiry"])

    def drop_dedupe(self, op: fold.DropDedupe) -> None:
        self.batch.delete(op.key.encode(), self.handles["dedupe"])
        self.batch.delete(keys.expiry_key(op.expires_at, op.key), self.handles["expiry"])

    def drop_job(self, op: fold.DropJob) -> None:
        self.batch.delete(op.job_id.encode(), self.handles["jobs"])

    def put_job(self, op: fold.PutJob) -> None:
        self.batch.put(op.job.id.encode(), records.encode(op.job), self.handles["jobs"])

    def put_lane(self, op: fold.PutLane) -> None:
        if op.lane is None:
            self.batch.delete(op.key.encode(), self.handles["lanes"])
        else:
            self.batch.put(op.key.encode(), records.encode(op.lane), self.handles["lanes"])
        self.changes.setdefault(LANES, [0, 0, 0])[0] += (op.lane is not None) - (op.was is not None)

    def put_breaker(self, op: fold.PutBreaker) -> None:
        key, breaker = op.key.encode(), op.breaker
        if breaker.state is BreakerState.CLOSED and not breaker.failures:
            self.batch.delete(key, self.handles["breakers"])
        else:
            self.batch.put(key, records.encode(breaker), self.handles["breakers"])

    def put_check_in(self, op: fold.PutCheckIn) -> None:
        value = op.position.to_bytes(2, "big") + op.pack.encode()
        self.batch.put(keys.u64(op.seq), value, self.handles["checkins"])

    def put_pack(self, op: fold.PutPack) -> None:
        self.batch.put(op.check_in.pack.encode(), records.encode(op.check_in), self.handles["packs"])

    def put_held(self, op: fold.PutHeld) -> None:
        key = keys.pen_key(op.held.received_at, op.held.id)
        self.batch.put(key, records.frame_hook(op.envelope, op.body), self.handles["pen"])
        self._count_pen(1, fold.stored_bytes(op))

    def drop_held(self, op: fold.DropHeld) -> None:
        self.batch.delete(keys.pen_key(op.received_at, op.hook_id), self.handles["pen"])
        self._count_pen(-1, -op.size_bytes)

    def _count_pen(self, entries: int, size_bytes: int) -> None:
        counts = self.changes.setdefault(PEN, [0, 0, 0])
        counts[0] += entries
        counts[1] += size_bytes

    def put_entry(self, op: PutEntry) -> None:
        if op.value is None:
            self.batch.delete(op.key.encode(), self.handles[op.table])
        else:
            self.batch.put(op.key.encode(), op.value, self.handles[op.table])

    def put_limit(self, op: fold.PutLimit) -> None:
        key = op.change.tenant_id.encode()
        if op.change.rate is None:
            self.batch.delete(key, self.handles["limits"])
        else:
            self.batch.put(key, records.encode(op.change), self.handles["limits"])


_WRITE: dict[type[Any], Callable[[_Writer, Any], None]] = {
    fold.PutBreaker: _Writer.put_breaker,
    fold.PutLane: _Writer.put_lane,
    fold.PutHook: _Writer.put_hook,
    fold.DropHook: _Writer.drop_hook,
    fold.DropDedupe: _Writer.drop_dedupe,
    fold.DropJob: _Writer.drop_job,
    fold.PutRow: _Writer.put_row,
    fold.PutAttempt: _Writer.put_attempt,
    fold.PutDedupe: _Writer.put_dedupe,
    fold.PutJob: _Writer.put_job,
    fold.PutCheckIn: _Writer.put_check_in,
    fold.PutPack: _Writer.put_pack,
    fold.PutHeld: _Writer.put_held,
    fold.DropHeld: _Writer.drop_held,
    fold.PutLimit: _Writer.put_limit,
    PutEntry: _Writer.put_entry,
}
