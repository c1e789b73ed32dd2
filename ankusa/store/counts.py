"""Row counts per sink key, kept in the same batch as the rows, so that no metric and no answer ever scans for them."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping

from ankusa.store.database import Database, Target

_COUNTS = struct.Struct(">qqq")

PEN = "/pen"
"""The pen's entry: `(entries, bytes, 0)`. A sink key starts with a tenant's name, never with a slash."""

LANES = "/lanes"
"""The lanes' entry: `(lanes with rows, members, 0)`."""


class Counts:
    """`(pending live, pending replayed, dead)` rows by sink key text; a sink key without rows has no entry."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self.by_sink: dict[str, tuple[int, int, int]] = {
            key.decode(): _COUNTS.unpack(value) for key, value in database.items("counts", b"", b"\xff")
        }

    def put(self, batch: Target, changes: Mapping[str, list[int]]) -> None:
        """Write the changed counts into `batch`."""
        handle = self._database.handles["counts"]
        for key, change in changes.items():
            counts = self._changed(key, change)
            if any(counts):
                batch.put(key.encode(), _COUNTS.pack(*counts), handle)
            else:
                batch.delete(key.encode(), handle)

    def written(self, changes: Mapping[str, list[int]]) -> None:
        """The batch is in the store: memory follows."""
        for key, change in changes.items():
            counts = self._changed(key, change)
            if any(counts):
                self.by_sink[key] = counts
            else:
                self.by_sink.pop(key, None)

    def sinks(self) -> Iterator[tuple[str, tuple[int, int, int]]]:
        """`(sink key, counts)` of every sink key with rows."""
        return ((key, counts) for key, counts in self.by_sink.items() if not key.startswith("/"))

    def total(self) -> tuple[int, int, int]:
        """`(pending live, pending replayed, dead)` of the whole store."""
        live = replayed = dead = 0
        for _, counts in self.sinks():
            live, replayed, dead = live + counts[0], replayed + counts[1], dead + counts[2]
        return live, replayed, dead

    def of_source(self, source_id: str) -> tuple[int, int, int]:
        live = replayed = dead = 0
        for key, counts in self.sinks():
            if key.split("/")[1] == source_id:
                live, replayed, dead = live + counts[0], replayed + counts[1], dead + counts[2]
        return live, replayed, dead

    def _changed(self, key: str, change: list[int]) -> tuple[int, int, int]:
        live, replayed, dead = self.by_sink.get(key, (0, 0, 0))
        return live + change[0], replayed + change[1], dead + change[2]
