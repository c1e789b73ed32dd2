"""The tables of all owned partitions, read as one: what the admin API's listings and figures ask of `Tables`.

A seq says its partition, so most questions go to one; listings are merged in the order of their keys, counts are added.
Reads only. A hook whose body has to be fetched from its topic first is shown without it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from heapq import merge
from itertools import islice
from typing import TypeVar

from ankusa.store import keys
from ankusa.store.tables import Tables
from schemas.records import Attempt, Envelope, Held, Lane, Row
from streams.kafka.fleet_log import FleetLog
from streams.kafka.places import partition_of

T = TypeVar("T")


class FleetCounts:
    """As `ankusa.store.counts.Counts` reads."""

    def __init__(self, tables: Sequence[Tables]) -> None:
        self._tables = tables

    def sinks(self) -> Iterator[tuple[str, tuple[int, int, int]]]:
        total: dict[str, tuple[int, int, int]] = {}
        for tables in self._tables:
            for key, (live, replayed, dead) in tables.counts.sinks():
                known = total.get(key, (0, 0, 0))
                total[key] = known[0] + live, known[1] + replayed, known[2] + dead
        return iter(total.items())

    def total(self) -> tuple[int, int, int]:
        live = replayed = dead = 0
        for tables in self._tables:
            counts = tables.counts.total()
            live, replayed, dead = live + counts[0], replayed + counts[1], dead + counts[2]
        return live, replayed, dead


class FleetDatabase:
    """As `ankusa.store.database.Database` reads, of families whose keys begin with a seq."""

    def __init__(self, tables: Sequence[Tables], of: Callable[[int], Tables | None]) -> None:
        self._tables = tables
        self._of = of

    def get_many(self, family: str, wanted: list[bytes]) -> list[bytes | None]:
        by_partition: dict[int, list[int]] = {}
        for index, key in enumerate(wanted):
            by_partition.setdefault(partition_of(keys.read_u64(key)), []).append(index)
        found: list[bytes | None] = [None] * len(wanted)
        for indexes in by_partition.values():
            tables = self._of(keys.read_u64(wanted[indexes[0]]))
            if tables is not None:
                values = tables.database.get_many(family, [wanted[index] for index in indexes])
                for index, value in zip(indexes, values, strict=True):
                    found[index] = value
        return found

    def size_bytes(self) -> int:
        return sum(tables.database.size_bytes() for tables in self._tables)


class FleetTables:
    """The partitions that are owned now. Made for each question and not kept: partitions come and go."""

    def __init__(self, fleet: FleetLog) -> None:
        self._fleet = fleet
        self._tables = [partition.tables for _, partition in sorted(fleet.partitions.items())]
        self.counts = FleetCounts(self._tables)
        self.database = FleetDatabase(self._tables, self._of)

    def _of(self, seq: int) -> Tables | None:
        return self._fleet.tables(partition_of(seq))

    # -- one hook -------------------------------------------------------------

    def seq_of(self, hook_id: str) -> int | None:
        return next((seq for tables in self._tables if (seq := tables.seq_of(hook_id)) is not None), None)

    def hook(self, seq: int) -> tuple[Envelope, bytes] | None:
        tables = self._of(seq)
        return None if tables is None else tables.hook(seq)

    def row(self, seq: int, sink: int) -> Row | None:
        tables = self._of(seq)
        return None if tables is None else tables.row(seq, sink)

    def rows_of(self, seq: int) -> list[tuple[int, Row]]:
        tables = self._of(seq)
        return [] if tables is None else tables.rows_of(seq)

    def attempts_of(self, seq: int) -> list[tuple[int, int, Attempt]]:
        tables = self._of(seq)
        return [] if tables is None else tables.attempts_of(seq)

    # -- listings ---------------------------------------------------------------

    def dead_back(self, start: bytes, end: bytes) -> Iterator[bytes]:
        return _closing([tables.dead_back(start, end) for tables in self._tables], lambda key: key, reverse=True)

    def held_from(self, start: bytes, end: bytes) -> Iterator[tuple[bytes, Held, int]]:
        return _closing([tables.held_from(start, end) for tables in self._tables], _first, reverse=False)

    def held_back(self, start: bytes, end: bytes) -> Iterator[tuple[bytes, Held, int]]:
        return _closing([tables.held_back(start, end) for tables in self._tables], _first, reverse=True)

    def lanes(self, start: bytes = b"", limit: int = 100) -> list[tuple[str, Lane]]:
        return list(islice(merge(*(tables.lanes(start, limit) for tables in self._tables), key=_name), limit))

    def lane_counts(self) -> tuple[int, int]:
        counts = [tables.lane_counts() for tables in self._tables]
        return sum(lanes for lanes, _ in counts), sum(members for _, members in counts)

    def pen_size(self) -> tuple[int, int]:
        sizes = [tables.pen_size() for tables in self._tables]
        return sum(entries for entries, _ in sizes), sum(size_bytes for _, size_bytes in sizes)


def _first(entry: tuple[bytes, Held, int]) -> bytes:
    return entry[0]


def _name(entry: tuple[str, Lane]) -> str:
    return entry[0]


def _closing(iterators: Sequence[Iterator[T]], key: Callable[[T], bytes], *, reverse: bool) -> Iterator[T]:
    """Merged; with the merge, each is let go of: one that lives on would keep a store's lock."""
    try:
        yield from merge(*iterators, key=key, reverse=reverse)
    finally:
        for iterator in iterators:
            iterator.close()  # type: ignore[attr-defined]
