"""The sweep over lanes with members: it heals those that lost their head, and looks how long the lanes are and how long
their heads have been heads, so that no scrape has to.

A pass costs a few reads a lane, however many members it has and had: of a long lane it remembers where its members
begin, since those that have gone would be walked over until they are compacted away. It makes no pass while no member
waits, which one counter tells. Owns what it remembers; promotions are the fold's.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from itertools import islice
from typing import Protocol

from ankusa.store import keys
from ankusa.store.tables import Tables
from schemas.records import LaneHeal, RowState, seq_of

log = logging.getLogger("ankusa.sweeper")

SLICE = 250
"""Members looked at in one go, so at most as many lanes: two or three milliseconds, the longest it holds the loop."""

LONG_LANES = 1000
"""Lanes of more than a slice whose beginning is remembered: some 300 bytes each. Past it the first ones are forgotten,
and their gone members walked over, 0.2 us each."""


class LaneStore(Protocol):
    """The tables of one log, and the way to it. `next_offset` is the turn of whoever joins a lane next."""

    @property
    def tables(self) -> Tables: ...
    @property
    def next_offset(self) -> int: ...
    def publish(self, record: LaneHeal) -> None: ...


class LaneSweep:
    """One log's lanes. `healed` counts promotions since the process started; `oldest_since` (unix ms, None without a
    lane that has members) and `longest` (rows) are those of the last pass."""

    def __init__(self, store: LaneStore) -> None:
        self._store = store
        self._begins: dict[str, bytes] = {}
        self.healed = 0
        self.oldest_since: int | None = None
        self.longest = 0

    def run(self) -> Iterator[None]:
        """One pass, in slices."""
        oldest: int | None = None
        longest = 0
        if not self._store.tables.lane_counts()[1]:
            return
        for start, end in self._ranges():
            while self._store.tables.lane_counts()[1] and (first_keys := self._slice(start, end)):
                headless = []
                for key, first in first_keys.items():
                    lane = self._store.tables.lane(key)
                    if lane is not None:
                        oldest, longest = min(oldest or lane.since, lane.since), max(longest, lane.depth)
                        self._remember(key, first, lane.depth)
                    if not self._has_head(key) and self._has_heir(key):
                        headless.append(key)
                if headless:
                    log.warning("event=lanes_healed lanes=%d first=%s", len(headless), headless[0])
                    self._store.publish(LaneHeal(tuple(headless)))
                    self.healed += len(headless)
                start = keys.prefix_end(keys.member_prefix(key))
                yield
        self.oldest_since, self.longest = oldest, longest

    def _ranges(self) -> Iterator[tuple[bytes, bytes]]:
        """The members, but for those that are known to have gone."""
        start = b""
        for key, begin in sorted(self._begins.items()):
            yield start, keys.member_prefix(key)
            start, end = begin, keys.member_key(key, seq_of(self._store.next_offset, 0), 0)
            if self._store.tables.database.first_key("members", start, end) is None:
                start = end  # who joins from now on has a later place
                self._begins[key] = start
        yield start, b"\xff"

    def _slice(self, start: bytes, end: bytes) -> dict[str, bytes]:
        """The lanes of the next members, each with the key of its first one."""
        scan = self._store.tables.database.keys("members", start, end)
        found: dict[str, bytes] = {}
        for key in islice(scan, SLICE):
            found.setdefault(keys.member_lane(key), key)
        scan.close()  # type: ignore[attr-defined]
        return found

    def _remember(self, key: str, first: bytes, depth: int) -> None:
        if depth > SLICE or key in self._begins:
            self._begins[key] = first
            if len(self._begins) > LONG_LANES:
                del self._begins[next(iter(self._begins))]

    def _has_head(self, key: str) -> bool:
        tables = self._store.tables
        lane = tables.lane(key)
        head = None if lane is None else tables.row(lane.head, _sink(key))
        return head is not None and head.state is RowState.PENDING and head.lane == key

    def _has_heir(self, key: str) -> bool:
        """Whether any member can be promoted: a row that does not decode cannot, and healing for it would never end."""
        tables = self._store.tables
        rows = (tables.row(seq, _sink(key)) for _, seq in tables.members(key))
        return any(row is not None and row.state is RowState.MEMBER and row.lane == key for row in rows)


def _sink(key: str) -> int:
    return int(key.split("/", 3)[2])
