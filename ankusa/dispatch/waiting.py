"""The pending rows and lane members of one source, in slices (spec 03 `dead_letter_source`).

Members come first, so that a head that goes has nobody to promote. The due index is by tenant, so the tenant's other
rows are passed over; which tenants to look at is known from the counts. Each slice is read with iterators of its own:
one that lived on would keep the lock of a store that is opened again. Reads only.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator, Sequence
from itertools import islice
from typing import Protocol

from ankusa.dispatch.ports import Place, Waiting
from ankusa.store import keys
from ankusa.store.tables import Tables
from schemas.records import INDEX_BITS, DecodeError, Row, RowState, decode_row

log = logging.getLogger("ankusa.dispatch")

SLICE = 128
"""Index entries looked at in one go. Their rows are read, and at worst written, in some ten milliseconds, in which no
delivery starts."""


class Store(Protocol):
    """A store of rows. `tables` is replaced when it is opened again; commits in `undurable` are not stored yet."""

    @property
    def tables(self) -> Tables: ...
    @property
    def undurable(self) -> Collection[int]: ...


def waiting(store: Store, source_id: str) -> Iterator[list[Waiting]]:
    """Slices of the source's rows that wait: members of lanes, then due and backed off, live and replayed. A slice may
    be empty; what one says holds until something else is written. Raises StoreError."""
    tenants = _tenants(store.tables, source_id)
    for tenant_id in tenants:
        prefix = keys.member_prefix_of(tenant_id, source_id)
        yield from _slices(store, source_id, "members", prefix, _member_place)
    for tenant_id in tenants:
        for row_class in (keys.LIVE, keys.REPLAYED):
            yield from _slices(store, source_id, "due", keys.due_prefix(row_class, tenant_id), _due_place)


def _tenants(tables: Tables, source_id: str) -> list[str]:
    """The tenants that have a row of this source that waits: usually one."""
    found: dict[str, None] = {}
    for key, (live, replayed, _) in tables.counts.sinks():
        tenant_id, owner, _ = key.split("/", 2)
        if owner == source_id and live + replayed:
            found[tenant_id] = None
    return list(found)


def _member_place(key: bytes) -> Place:
    return keys.split_member_key(key)[1], int(keys.member_lane(key).split("/", 3)[2])


def _due_place(key: bytes) -> Place:
    _, seq, sink = keys.split_due_key(key)
    return seq, sink


def _slices(
    store: Store, source_id: str, family: str, prefix: bytes, place_of: Callable[[bytes], Place]
) -> Iterator[list[Waiting]]:
    start, end = prefix, keys.prefix_end(prefix)
    while True:
        tables = store.tables
        scan = tables.database.keys(family, start, end)
        found = list(islice(scan, SLICE))
        scan.close()  # type: ignore[attr-defined]
        if not found:
            return
        start = keys.after(found[-1])
        places = [place for place in map(place_of, found) if place[0] >> INDEX_BITS not in store.undurable]
        yield _read(tables, places, source_id)


def _read(tables: Tables, places: Sequence[Place], source_id: str) -> list[Waiting]:
    stored = tables.database.get_many("rows", [keys.row_key(*place) for place in places])
    rows: list[tuple[Place, Row]] = []
    for place, value in zip(places, stored, strict=True):
        row = None if value is None else _decoded(place, value)
        if row is not None and row.source_id == source_id and row.state is not RowState.DEAD:
            rows.append((place, row))
    hooks = tables.database.present("hooks", sorted({keys.u64(seq) for (seq, _), _ in rows}))
    return [Waiting(place, row, keys.u64(place[0]) in hooks) for place, row in rows]


def _decoded(place: Place, stored: bytes) -> Row | None:
    try:
        return decode_row(stored)
    except DecodeError as error:
        log.error("event=row_undecodable seq=%d sink=%d reason=%s", *place, error)
        return None
