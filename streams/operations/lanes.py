"""The listing of lanes with rows, in order of their keys (spec 03 "Lanes"): depth, head, how long it has been head.

Reads in slices and lets the loop go on between them, each slice with an iterator of its own. What the caller may not
see or did not ask for is passed over by a seek for each sink key. Owns what one call may cost; never changes a lane.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from ankusa.operations import BadCursor, Tenants
from ankusa.store import keys
from ankusa.store.tables import Tables
from schemas import api
from schemas.api import LaneHead, LaneList
from schemas.api_requests import PAGE_LIMIT, LaneQuery
from schemas.records import DecodeError, Lane, RowState
from streams.operations import cursor as cursors
from streams.operations.names import ERROR_CLASSES

SLICE_LANES = 64
SLICE_BYTES = 1 << 20
"""What one slice shows and reads of heads' hooks, whose bodies come with them: a few milliseconds."""

SEEKS = 2000
READ_BYTES = 64 << 20
"""What one call may pass over and read. Past it the page ends, with a cursor."""

_END = b"\xff"


class Listing:
    """One call. `tables` gives the open tables, or raises StoreError; `claimed` says whether a place is claimed."""

    def __init__(
        self, tables: Callable[[], Tables], claimed: Callable[[int, int], bool], query: LaneQuery, tenants: Tenants
    ) -> None:
        self._tables = tables
        self._claimed = claimed
        self._query = query
        self._tenants = tenants
        self._limit = min(max(query.limit, 0), PAGE_LIMIT)
        self._entries: list[api.Lane] = []
        self._start = b"" if query.tenant is None else f"{query.tenant}/".encode()
        self._seeks = self._read_bytes = 0

    async def page(self, at: int) -> LaneList | BadCursor:
        """The page and its cursor; ages are at `at`."""
        if self._query.cursor is not None:
            after = cursors.decode(self._query.cursor)
            if after is None:
                return BadCursor()
            self._start = max(self._start, after)
        more = self._limit > 0
        while more and len(self._entries) < self._limit and self._seeks < SEEKS and self._read_bytes < READ_BYTES:
            more = self._slice(at)
            await asyncio.sleep(0)
        lanes, members = self._tables().lane_counts()
        whole = self._tenants is None
        return LaneList(
            lanes=lanes if whole else None,
            members=members if whole else None,
            entries=self._entries,
            next_cursor=cursors.encode(self._start) if more else None,
        )

    def _slice(self, at: int) -> bool:
        """Show the next lanes up to one that is passed over; False when there are none left. Leaves `_start` behind the
        last one looked at."""
        tables = self._tables()
        left = min(SLICE_LANES, self._limit - len(self._entries))
        self._seeks += 1
        read_bytes = 0
        for key, lane in tables.lanes(self._start, left + 1):
            skipped = self._skipped(key)
            if skipped is not None:
                self._start = keys.prefix_end(skipped.encode())
                return self._query.tenant is None or skipped.startswith(f"{self._query.tenant}/")
            if left == 0 or read_bytes >= SLICE_BYTES:
                self._read_bytes += read_bytes
                return True
            shown, size_bytes = self._shown(tables, key, lane, at)
            self._entries.append(shown)
            self._start, left, read_bytes = keys.after(key.encode()), left - 1, read_bytes + size_bytes
        return False

    def _skipped(self, key: str) -> str | None:
        """The prefix of keys to pass over, of which this is one; None for a lane to show."""
        query = self._query
        tenant_id, source_id, sink, sink_type, _ = key.split("/", 4)
        if (query.tenant not in (None, tenant_id)) or (self._tenants is not None and tenant_id not in self._tenants):
            return f"{tenant_id}/"
        if query.source_id not in (None, source_id):
            return f"{tenant_id}/{source_id}/"
        return f"{tenant_id}/{source_id}/{sink}/{sink_type}/" if query.sink not in (None, int(sink)) else None

    def _shown(self, tables: Tables, key: str, lane: Lane, at: int) -> tuple[api.Lane, int]:
        tenant_id, source_id, sink, sink_type, ordering_key = key.split("/", 4)
        head, size_bytes = self._head(tables, key, lane.head, int(sink))
        shown = api.Lane(
            tenant=tenant_id,
            source_id=source_id,
            sink=int(sink),
            sink_type=sink_type,
            ordering_key=ordering_key,
            depth=lane.depth,
            head_since_at=lane.since,
            head_age_ms=max(0, at - lane.since),
            head=head,
        )
        return shown, size_bytes

    def _head(self, tables: Tables, key: str, seq: int, sink: int) -> tuple[LaneHead | None, int]:
        row = tables.row(seq, sink)
        if row is None or row.state is not RowState.PENDING or row.lane != key:
            return None, 0
        try:
            hook = tables.hook(seq)
        except DecodeError:
            hook = None
        head = LaneHead(
            id=hook[0].id if hook else None,
            seq=seq,
            state="claimed" if self._claimed(seq, sink) else "pending",
            due_at=row.at,
            attempts=row.attempts,
            error=row.error,
            error_class=ERROR_CLASSES[row.error_class] if row.error_class is not None else None,
            replay_id=row.replay_id,
        )
        return head, row.size_bytes
