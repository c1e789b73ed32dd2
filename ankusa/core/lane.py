"""Lanes: the hooks of one ordered sink and key, delivered one at a time in seq order (spec 03 "Lanes").

A lane with rows has one head, pending or claimed; its others are members, in the store and nowhere else. Whoever ends
the head (delivered or dead) promotes the next member in the same record, so a poison hook never holds its key for ever.
Owns who is head while one record is folded; a lane's rows are changed by `row`, written by the fold.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from ankusa.core import row as rows
from schemas.records import Lane, Row, RowState


class LaneTables(Protocol):
    """What lanes read."""

    def row(self, seq: int, sink: int) -> Row | None: ...
    def lane(self, key: str) -> Lane | None: ...
    def members(self, key: str) -> Iterator[tuple[int, int]]:
        """`(place, seq)` of a lane's members, in order."""


class Lanes:
    """The lanes that one record touches, as they will be after it."""

    def __init__(self, tables: LaneTables) -> None:
        self._tables = tables
        self._before: dict[str, Lane | None] = {}
        self._now: dict[str, Lane | None] = {}
        self._left: set[tuple[str, int]] = set()

    def lane(self, key: str) -> Lane | None:
        if key not in self._now:
            self._before[key] = self._now[key] = self._tables.lane(key)
        return self._now[key]

    def join(self, row: Row, seq: int, place: int, at: int) -> Row:
        """A new or revived row (it names its lane) goes to the tail: pending if the lane was empty, else a member."""
        assert row.lane is not None
        lane = self.lane(row.lane)
        if lane is None:
            self._now[row.lane] = Lane(seq, 1, at)
            return row
        self._now[row.lane] = Lane(lane.head, lane.depth + 1, lane.since)
        return rows.waiting(row, place)

    def leave(self, row: Row, seq: int, sink: int, at: int) -> tuple[int, Row, Row] | None:
        """A row has left its lane. The member it promotes, `(seq, row before, row after)`, when it was the head."""
        assert row.lane is not None
        self._left.add((row.lane, seq))
        lane = self.lane(row.lane)
        if lane is None:
            return None
        if lane.head != seq:
            self._now[row.lane] = Lane(lane.head, max(1, lane.depth - 1), lane.since)
            return None
        return self._promote(row.lane, sink, lane.depth - 1, at)

    def heal(self, key: str, sink: int, at: int) -> tuple[int, Row, Row] | None:
        """The promotion a lane needs that lost its head; None when its head is there, or nobody waits."""
        lane = self.lane(key)
        head = None if lane is None else self._tables.row(lane.head, sink)
        if head is not None and head.lane == key and head.state is RowState.PENDING:
            return None
        return self._promote(key, sink, sum(1 for _ in self._tables.members(key)), at)

    def _promote(self, key: str, sink: int, depth: int, at: int) -> tuple[int, Row, Row] | None:
        for _, seq in self._tables.members(key):
            member = None if (key, seq) in self._left else self._tables.row(seq, sink)
            if member is not None and member.state is RowState.MEMBER and member.lane == key:
                self._now[key] = Lane(seq, max(1, depth), at)
                return seq, member, rows.promoted(member, at)
        self._now[key] = None
        return None

    def changed(self) -> Iterator[tuple[str, Lane | None, Lane | None]]:
        """`(key, lane before, lane after)` of every lane that is not as it was."""
        for key, lane in self._now.items():
            if lane != self._before[key]:
                yield key, self._before[key], lane
