"""The tables: one database, the operations of a fold written as one batch, and the reads a fold and the API need.

Owns how an operation becomes keys, and the small state kept beside the database so that nobody has to scan for it:
the due indexes and the counts per sink key. Never decides what an operation should be.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path

from ankusa.core import ops as operations
from ankusa.core.set_up import SetUpTable
from ankusa.store import keys
from ankusa.store.batch import Writer
from ankusa.store.counts import LANES, PEN, Counts
from ankusa.store.database import Database, Target
from ankusa.store.due import DueIndex
from ankusa.store.errors import StoreError, StoreFormatError
from ankusa.store.memory import StoreMemory
from ankusa.store.recent import HOOK_OVERHEAD_BYTES, NO_ROWS, RecentHooks
from schemas import records
from schemas.records import FORMAT_VERSION, Attempt, Breaker, CheckIn, Job, Lane, LimitChange, Row

log = logging.getLogger("ankusa.store")

FAMILIES = (
    *("log", "hooks", "ids", "rows", "due", "dead", "attempts"),
    *("dedupe", "expiry", "jobs", "breakers", "lanes", "members", "pen", "limits", "counts", "meta"),
    *("sources", "routes"),
    *("checkins", "packs"),
)
CHURNING = ("rows", "due", "dead", "hooks", "expiry", "lanes", "members", "pen")

READ_AHEAD_BYTES = 8 << 10
"""The largest hook that is read when its row is claimed. A full window of them is a quarter of `RECENT_BYTES`."""


class Tables:
    """The tables of one store. Not thread-safe: one thread writes and reads, only `Database.flush` runs beside it."""

    def __init__(self, path: Path, memory: StoreMemory | None = None) -> None:
        """`memory` is what it may take; without it, what a process's only store may."""
        memory = memory or StoreMemory.alone()
        self.recent = RecentHooks(memory.recent_bytes)
        self.database = Database(path, FAMILIES, blobs="hooks", churning=CHURNING, memory=memory)
        try:
            self._check_format()
            self.counts = Counts(self.database)
            self.live = DueIndex(self.database, keys.LIVE)
            self.replayed = DueIndex(self.database, keys.REPLAYED)
        except BaseException:
            self.database.close()
            raise

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
        """None where there is none, or where it does not decode: a damaged row must not stop the fold of its lane."""
        stored = self.database.get("rows", keys.row_key(seq, sink))
        return None if stored is None else _decoded((seq, sink), stored)

    def job(self, job_id: str) -> Job | None:
        stored = self.database.get("jobs", job_id.encode())
        return None if stored is None else records.decode_job(stored)

    def breaker(self, key: str) -> Breaker | None:
        stored = self.database.get("breakers", key.encode())
        return None if stored is None else records.decode_breaker(stored)

    def lane(self, key: str) -> Lane | None:
        stored = self.database.get("lanes", key.encode())
        return None if stored is None else records.decode_lane(stored)

    def members(self, key: str, place: int = 0) -> Iterator[tuple[int, int]]:
        """`(place, seq)` of a lane's members, in order, from `place` on: behind those that have gone, which would be
        walked over until they are compacted away, some 20 ms for 100,000."""
        start, end = keys.member_key(key, place, 0), keys.prefix_end(keys.member_prefix(key))
        return (keys.split_member_key(found) for found in self.database.keys("members", start, end))

    def lanes(self, start: bytes, limit: int) -> list[tuple[str, Lane]]:
        """`(key, lane)` of up to `limit` lanes with rows, from key `start` on."""
        items = islice(self.database.items("lanes", start, b"\xff"), limit)
        return [(key.decode(), records.decode_lane(value)) for key, value in items]

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

    def pack(self, pack: str) -> CheckIn | None:
        """The check-in that made a pack, None when no record names it, or it is forgotten."""
        stored = self.database.get("packs", pack.encode())
        return None if stored is None else records.decode_check_in(stored)

    def has_pack(self, pack: str) -> bool:
        """Whether a record names this pack, and it is not forgotten yet."""
        return self.database.get("packs", pack.encode()) is not None

    def dedupe(self, key: str) -> tuple[str, int] | None:
        stored = self.database.get("dedupe", key.encode())
        return None if stored is None else (stored[8:].decode(), keys.read_u64(stored))

    # -- what the dispatcher and the API read ------------------------------

    def claim_rows(self, places: list[tuple[int, int]]) -> list[Row | None]:
        """The rows at `(seq, sink)`, in order; None where there is none, or where it does not decode: that one is named
        in the log and left where it is."""
        rows = self.recent.take_rows(places)
        missing = [index for index, row in enumerate(rows) if row is None]
        if missing:
            stored = self.database.get_many("rows", [keys.row_key(*places[index]) for index in missing])
            for index, value in zip(missing, stored, strict=True):
                rows[index] = None if value is None else _decoded(places[index], value)
            self._read_ahead(places, rows)
        return rows

    def _read_ahead(self, places: list[tuple[int, int]], rows: list[Row | None]) -> None:
        """Remember the small hooks of rows about to be attempted: together they cost a fifth of one by one. No more
        than stay until then, and what cannot be read is left for `hook` to say."""
        seqs: dict[int, None] = {}
        left_bytes = self.recent.limit_bytes // 4
        for (seq, _), row in zip(places, rows, strict=True):
            if row is None or row.size_bytes > READ_AHEAD_BYTES or seq in self.recent or seq in seqs:
                continue
            left_bytes -= row.size_bytes + HOOK_OVERHEAD_BYTES
            if left_bytes < 0:
                break
            seqs[seq] = None
        try:
            stored = self.database.get_many("hooks", [keys.u64(seq) for seq in seqs])
        except StoreError:
            return
        for seq, value in zip(seqs, stored, strict=True):
            if value is not None:
                with contextlib.suppress(*records.DecodeError):
                    envelope, body = records.unframe_hook(value)
                    self.recent.keep(seq, records.decode_envelope(envelope), body, NO_ROWS, len(value))

    def hook(self, seq: int) -> tuple[records.Envelope, bytes] | None:
        """A hook's envelope and body; None when it is not stored. Raises one of `records.DecodeError`."""
        recent = self.recent.hook(seq)
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

    def apply(self, batch: Target, ops: Iterable[operations.Op]) -> Applied:
        """Put a fold's operations into `batch`. Once it is written, call the answer's `written`, then `announce`.

        What is kept in memory changes only then: a batch that RocksDB refuses must leave no trace here. A row is
        announced to the due index only when its hook is durable, or a hook could be delivered and then refused.
        """
        writer = Writer(batch, self.database.handles)
        writer.write(ops)
        self.counts.put(batch, writer.changes)
        return Applied(self, writer)

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

    __slots__ = ("_added", "_changed", "_changes", "_settled", "_tables")

    def __init__(self, tables: Tables, writer: Writer) -> None:
        self._tables = tables
        self._changes = writer.changes
        self._added = writer.added
        self._settled = writer.settled
        self._changed = writer.changed

    def written(self) -> None:
        """The batch is in the store."""
        self._tables.counts.written(self._changes)
        recent = self._tables.recent
        for seq in self._settled:
            recent.forget(seq)
        for place in self._changed:
            recent.forget_row(*place)

    def announce(self) -> None:
        """Its pending rows may be claimed."""
        for replayed, tenant_id, due_at, key in self._added:
            (self._tables.replayed if replayed else self._tables.live).added(tenant_id, due_at, key)
