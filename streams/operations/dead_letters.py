"""The dead-letter listing: newest death first, over the dead index (spec 07).

Reads in slices and lets the loop go on between them, each slice with an iterator of its own (one that is kept would
hold the lock of a store that is opened again). Owns what one call may cost; never changes a row.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from itertools import islice

from ankusa.operations import BadCursor, Tenants
from ankusa.store import keys
from ankusa.store.tables import Tables
from schemas import records
from schemas.api import DeadLetter, DeadLetters
from schemas.api_requests import PAGE_LIMIT, DeadLetterQuery
from schemas.records import DecodeError, Row, RowState
from streams.operations import cursor as cursors
from streams.operations.names import ERROR_CLASSES

log = logging.getLogger("ankusa.admin")

SLICE_ROWS = 256
SLICE_BYTES = 1 << 20
"""What one slice looks at and reads: a few milliseconds in which no delivery starts."""

SCAN_ROWS = 50_000
READ_BYTES = 64 << 20
"""What one call may look at and read of hooks, whose bodies come with them. Past it the page ends, with a cursor."""

DEAD_KEY_BYTES = 18
_END = keys.u64(1 << 63)


class Listing:
    """One call. `tables` gives the open tables, or raises StoreError."""

    def __init__(self, tables: Callable[[], Tables], query: DeadLetterQuery, tenants: Tenants) -> None:
        self._tables = tables
        self._query = query
        self._tenants = tenants
        self._limit = min(max(query.limit, 0), PAGE_LIMIT)
        self._start = keys.u64(query.since or 0)
        self._end = _END if query.until is None else keys.u64(query.until + 1)
        self._entries: list[DeadLetter] = []
        self._scanned = 0
        self._read_bytes = 0
        self._undecodable = 0

    async def page(self) -> DeadLetters | BadCursor:
        """The page and its cursor."""
        if self._query.cursor is not None:
            after = cursors.decode(self._query.cursor)
            if after is None or len(after) != DEAD_KEY_BYTES:
                return BadCursor()
            self._end = min(self._end, after)
        total, matching = self._counts()
        more = self._limit > 0 and matching > 0
        while more and self._within_budget():
            more = self._slice()
            await asyncio.sleep(0)
        if self._undecodable:
            log.warning("event=dead_rows_undecodable count=%d", self._undecodable)
        return DeadLetters(total=total, entries=self._entries, next_cursor=cursors.encode(self._end) if more else None)

    def _within_budget(self) -> bool:
        room = self._scanned < SCAN_ROWS and self._read_bytes < READ_BYTES
        return room and len(self._entries) < self._limit

    def _counts(self) -> tuple[int, int]:
        """Dead rows the caller may see, and those of them at a sink key that the filters let through."""
        query, total, matching = self._query, 0, 0
        for key, (_, _, dead) in self._tables().counts.sinks():
            if not dead:
                continue
            tenant_id, source_id, sink, _ = key.split("/", 3)
            if self._tenants is not None and tenant_id not in self._tenants:
                continue
            total += dead
            asked = ((query.tenant, tenant_id), (query.source_id, source_id), (query.sink, int(sink)))
            if all(want is None or want == have for want, have in asked):
                matching += dead
        return total, matching

    def _slice(self) -> bool:
        """Look at the next rows; False when there are no more. Leaves `_end` at the last one looked at."""
        tables = self._tables()
        found = list(islice(self._keys(tables), SLICE_ROWS))
        places = [keys.split_dead_key(key) for key in found]
        stored = tables.database.get_many("rows", [keys.row_key(seq, sink) for _, seq, sink in places])
        read_bytes = 0
        for key, (_, seq, sink), value in zip(found, places, stored, strict=True):
            self._end = key
            self._scanned += 1
            row = self._decoded(value)
            if row is None or not self._wanted(sink, row):
                continue
            self._entries.append(_entry(tables, seq, sink, row))
            read_bytes += row.size_bytes
            if len(self._entries) == self._limit or read_bytes >= SLICE_BYTES:
                break
        self._read_bytes += read_bytes
        return bool(found) and next(self._keys(tables), None) is not None

    def _keys(self, tables: Tables) -> Iterator[bytes]:
        """Dead index keys below `_end`, newest first; of one hook when the query names it."""
        if self._query.id is None:
            return tables.dead_back(self._start, self._end)
        seq = tables.seq_of(self._query.id)
        rows = [] if seq is None else tables.rows_of(seq)
        dead = (keys.dead_key(row.at, seq, sink) for sink, row in rows if row.state is RowState.DEAD)
        return iter(sorted((key for key in dead if self._start <= key < self._end), reverse=True))

    def _decoded(self, value: bytes | None) -> Row | None:
        """A row that does not decode says neither whose nor what it is: it is left out, and noted."""
        try:
            return None if value is None else records.decode_row(value)
        except DecodeError:
            self._undecodable += 1
            return None

    def _wanted(self, sink: int, row: Row) -> bool:
        query = self._query
        if self._tenants is not None and row.tenant_id not in self._tenants:
            return False
        error_class = ERROR_CLASSES[row.error_class] if row.error_class is not None else None
        asked = (
            (query.source_id, row.source_id),
            (query.tenant, row.tenant_id),
            (query.sink, sink),
            (query.error_class, error_class),
        )
        return row.state is RowState.DEAD and all(want is None or want == have for want, have in asked)


def _entry(tables: Tables, seq: int, sink: int, row: Row) -> DeadLetter:
    try:
        hook = tables.hook(seq)
    except DecodeError:
        hook = None
    envelope = hook[0] if hook else None
    return DeadLetter(
        id=envelope.id if envelope else None,
        source_id=row.source_id,
        tenant_id=row.tenant_id,
        seq=seq,
        received_at=envelope.received_at if envelope else None,
        dead_lettered_at=row.at,
        size=len(hook[1]) if hook else None,
        content_type=envelope.content_type if envelope else None,
        reason=row.error,
        sink=sink,
        sink_type=row.sink_type,
        error_class=ERROR_CLASSES[row.error_class] if row.error_class is not None else None,
        attempts=row.attempts,
        replay_id=row.replay_id,
    )
