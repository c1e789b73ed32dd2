"""The pen's listing and its purge (spec 06), in slices between which the loop goes on.

An entry is read with its body, so slices are bounded by bytes too. Owns what one call may cost; what counts against the
pen's cap is the fold's.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Protocol

from ankusa.operations import BadCursor, Tenants
from ankusa.store import keys
from ankusa.store.tables import Tables
from schemas.api import HeldHook, HeldHooks, Purged
from schemas.api_requests import PAGE_LIMIT, PURGE_LIMIT, HeldQuery, PurgeQuery
from schemas.records import Held, PenEntry, Purge
from streams.operations import cursor as cursors

SLICE_ENTRIES = 256
SLICE_BYTES = 1 << 20
"""What one slice reads: a few milliseconds in which no delivery starts."""

SCAN_ENTRIES = 50_000
READ_BYTES = 64 << 20
"""What one listing reads. Past it the page ends, with a cursor."""

_END = keys.u64(1 << 63)

Entry = tuple[bytes, Held, int]


class PurgeLog(Protocol):
    """Where purges are appended."""

    def now(self) -> int: ...
    async def purge(self, record: Purge) -> None:
        """Delete pen entries, durably. Raises StoreError."""


async def listing(open_tables: Callable[[], Tables], query: HeldQuery, tenants: Tenants) -> HeldHooks | BadCursor:
    """A page of held hooks, newest first."""
    start, end = _range(query)
    if query.cursor is not None:
        after = cursors.decode(query.cursor)
        if after is None or len(after) <= 8:
            return BadCursor()
        end = min(end, after)
    limit = min(max(query.limit, 0), PAGE_LIMIT)
    entries: list[HeldHook] = []
    scanned = read_bytes = 0
    more = limit > 0
    while more and len(entries) < limit and scanned < SCAN_ENTRIES and read_bytes < READ_BYTES:
        found, more = _slice(open_tables().held_back(start, end))
        for key, held, stored_bytes in found:
            end = key
            scanned, read_bytes = scanned + 1, read_bytes + stored_bytes
            if _wanted(held, query, tenants):
                entries.append(_shown(held))
            if len(entries) == limit:
                more = next(open_tables().held_back(start, end), None) is not None
                break
        await asyncio.sleep(0)
    total, size_bytes = open_tables().pen_size()
    whole = tenants is None
    return HeldHooks(
        entries=entries,
        total=total if whole else None,
        bytes=size_bytes if whole else None,
        next_cursor=cursors.encode(end) if more else None,
    )


async def purge(open_tables: Callable[[], Tables], log: PurgeLog, query: PurgeQuery, tenants: Tenants) -> Purged:
    """Delete matching entries, oldest first, each slice durable before the next is read. A store that refuses in the
    middle leaves the rest: what was deleted is deleted."""
    start, end = _range(query)
    left = min(max(query.limit, 0), PURGE_LIMIT)
    deleted = freed_bytes = 0
    more = True
    while more and left > 0:
        found, more = _slice(open_tables().held_from(start, end))
        if found:
            start = keys.after(found[-1][0])
        gone = [
            PenEntry(held.received_at, held.id, stored_bytes)
            for _, held, stored_bytes in found
            if _wanted(held, query, tenants)
        ][:left]
        if gone:
            # Nothing is awaited between the reading above and the write in here: no entry is counted off twice.
            await log.purge(Purge(log.now(), tuple(gone)))
        else:
            await asyncio.sleep(0)
        left -= len(gone)
        deleted += len(gone)
        freed_bytes += sum(entry.stored_bytes for entry in gone)
    return Purged(deleted=deleted, bytes=freed_bytes)


def _range(query: HeldQuery | PurgeQuery) -> tuple[bytes, bytes]:
    return keys.u64(query.since or 0), _END if query.until is None else keys.u64(query.until + 1)


def _slice(scan: Iterator[Entry]) -> tuple[list[Entry], bool]:
    """The next entries, and whether there may be more."""
    found: list[Entry] = []
    read_bytes = 0
    for entry in scan:
        found.append(entry)
        read_bytes += entry[2]
        if len(found) == SLICE_ENTRIES or read_bytes >= SLICE_BYTES:
            return found, True
    return found, False


def _wanted(held: Held, query: HeldQuery | PurgeQuery, tenants: Tenants) -> bool:
    return (query.source_id is None or held.source_id == query.source_id) and (
        tenants is None or held.tenant_id in tenants
    )


def _shown(held: Held) -> HeldHook:
    return HeldHook(
        id=held.id,
        source_id=held.source_id,
        tenant_id=held.tenant_id,
        received_at=held.received_at,
        reason=held.reason,
        size=held.size_bytes,
        method=held.method,
        path=held.path,
    )
