"""The reader of kind `dlq`: dead rows by death time, from a cursor on, within the job's horizon (spec 05).

Owns what matches and in what order it is read; never moves a row and never paces. A key of the dead index is
`(death time, seq, sink)`; rows that die later have later keys, so what lies within the horizon only ever shrinks.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from msgspec import Struct

from ankusa.replay.ports import ReplayHost, Unreadable
from ankusa.store import keys
from schemas.records import ErrorClass, Revival, Row, RowState, sink_key

READ_ENTRIES = 125
"""Keys and rows read at once. A page that is full of items early has read at most this many entries in vain."""

_TIME_LIMIT = (1 << 64) - 2


class DlqFilter:
    """A validated filter and a horizon, compiled. Bounds are death times in unix ms, both included."""

    __slots__ = ("_error_class", "_sink", "_source_id", "_tenants", "by_counts", "end", "hook_id", "start")

    def __init__(self, chosen: Mapping[str, Any], horizon_at: int) -> None:
        self._source_id: str | None = chosen.get("source_id")
        self._sink: int | None = chosen.get("sink")
        self._tenants = frozenset(chosen["tenants"]) if "tenants" in chosen else None
        self._error_class = ErrorClass[chosen["error_class"].upper()] if "error_class" in chosen else None
        self.hook_id: str | None = chosen.get("id")
        until = min(chosen.get("until", horizon_at), horizon_at, _TIME_LIMIT)
        self.start = keys.dead_key(chosen.get("since", 0), 0, 0)
        self.end = keys.dead_key(until + 1, 0, 0)
        # Counts are kept by sink key: they tell exactly how many match when the filter asks for no more than that.
        self.by_counts = chosen.keys() <= {"source_id", "sink", "tenants"}

    def wants_sink(self, sink: int) -> bool:
        """What the index key alone decides."""
        return self._sink is None or sink == self._sink

    def wants(self, row: Row) -> bool:
        return (
            (self._source_id is None or row.source_id == self._source_id)
            and (self._tenants is None or row.tenant_id in self._tenants)
            and (self._error_class is None or row.error_class is self._error_class)
        )

    def wants_key(self, key: str) -> bool:
        """Whether rows of this sink key can match."""
        tenant_id, source_id, sink, _ = key.split("/", 3)
        return (
            (self._source_id is None or source_id == self._source_id)
            and (self._tenants is None or tenant_id in self._tenants)
            and self.wants_sink(int(sink))
        )


class Entry(Struct, frozen=True, gc=False):
    """One scanned entry. `row` is None when the filter does not want it; `skipped` when it does not decode."""

    key: bytes
    seq: int
    sink: int
    row: Row | None
    skipped: bool

    def sink_key(self) -> str:
        assert self.row is not None
        return sink_key(self.row.tenant_id, self.row.source_id, self.sink, self.row.sink_type)


class Scan(Struct, frozen=True):
    """One page's reading. `cursor` is the last key taken, or the end of the range when `end`."""

    cursor: bytes
    scanned: int
    skipped: int
    revivals: tuple[Revival, ...]
    end: bool


def read(host: ReplayHost, wanted: DlqFilter, cursor: bytes | None, limit: int) -> tuple[list[Entry], bool]:
    """Up to `limit` entries after `cursor`, in order, and whether the range ends with them. Raises StoreError."""
    start = max(wanted.start, keys.after(cursor)) if cursor else wanted.start
    if start >= wanted.end:
        return [], True
    if wanted.hook_id is None:
        found = host.dead_keys(start, wanted.end, limit)
    else:
        found = [key for key in host.dead_keys_of(wanted.hook_id) if start <= key < wanted.end][:limit]
    return list(_entries(host, wanted, found)), len(found) < limit


def _entries(host: ReplayHost, wanted: DlqFilter, found: list[bytes]) -> Iterator[Entry]:
    places = [_place(key) for key in found]
    reads = [place for place in places if place is not None and wanted.wants_sink(place[2])]
    rows = iter(host.rows([(seq, sink) for _, seq, sink in reads]))
    for key, place in zip(found, places, strict=True):
        if place is None:
            yield Entry(key, 0, 0, None, skipped=True)
            continue
        died_at, seq, sink = place
        if not wanted.wants_sink(sink):
            yield Entry(key, seq, sink, None, skipped=False)
            continue
        row = next(rows)
        if row is None or isinstance(row, Unreadable) or row.state is not RowState.DEAD or row.at != died_at:
            yield Entry(key, seq, sink, None, skipped=True)
        else:
            yield Entry(key, seq, sink, row if wanted.wants(row) else None, skipped=False)


def _place(key: bytes) -> tuple[int, int, int] | None:
    return keys.split_dead_key(key) if len(key) == keys.DUE_TAIL_BYTES else None


def scan(
    host: ReplayHost, wanted: DlqFilter, cursor: bytes | None, held: Collection[str], items: int, entries: int
) -> Scan:
    """Read on from `cursor` until `items` rows are found, `entries` are scanned, or the range ends.

    Rows of sink keys in `held` are passed over and left where they are. Raises StoreError.
    """
    revivals: list[Revival] = []
    scanned = skipped = 0
    place = cursor
    while scanned < entries:
        found, end = read(host, wanted, place, min(READ_ENTRIES, entries - scanned))
        for entry in found:
            scanned += 1
            place = entry.key
            skipped += entry.skipped
            if entry.row is None or (held and entry.sink_key() in held):
                continue
            revivals.append(Revival(entry.seq, entry.sink, entry.row.generation))
            if len(revivals) == items:
                return Scan(place, scanned, skipped, tuple(revivals), end=False)
        if end:
            return Scan(wanted.end, scanned, skipped, tuple(revivals), end=True)
    return Scan(place or b"", scanned, skipped, tuple(revivals), end=False)


class HeldScan(Struct, frozen=True, gc=False):
    """A search for what is held back: `found` one, or `end` without; else go on from `cursor`."""

    cursor: bytes
    scanned: int
    found: bool
    end: bool


def find_held(
    host: ReplayHost, wanted: DlqFilter, cursor: bytes | None, held: Collection[str], entries: int
) -> HeldScan:
    """Look for a matching row of a sink key in `held`, from `cursor` on. Raises StoreError."""
    found, end = read(host, wanted, cursor, entries)
    for index, entry in enumerate(found):
        if entry.row is not None and entry.sink_key() in held:
            return HeldScan(entry.key, index + 1, found=True, end=False)
    place = found[-1].key if found else cursor or b""
    return HeldScan(place, len(found), found=False, end=end)


def only_held_left(host: ReplayHost, wanted: DlqFilter, held: Collection[str]) -> bool:
    """True when every sink key that has dead rows the filter may want is held: nothing else can be left."""
    return all(key in held for key, dead in host.dead_counts().items() if dead > 0 and wanted.wants_key(key))
