"""Lanes: the hooks of one ordered sink and key, delivered one at a time in seq order (spec 03 "Lanes").

A lane with rows has one head, pending or claimed; its others are members, in the store and nowhere else. Whoever ends
the head (delivered or dead) promotes the next member in the same record, so a poison hook never holds its key for ever.
Owns who is head while one record is folded; a lane's rows are changed by `row`, written by the fold. What a promotion
costs depends neither on how many members wait nor on how many have gone: it begins behind the place of the old head.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum, auto
from typing import Protocol

from ankusa.core import row as rows
from schemas.records import Lane, Row, RowState


class LaneState(Enum):
    """EMPTY has no rows and no entry. HEADLESS has members, but the row of its head is gone: damage, to be healed."""

    EMPTY = auto()
    HEAD_ALONE = auto()
    HEAD_AND_MEMBERS = auto()
    HEADLESS = auto()


class LaneEvent(Enum):
    """JOIN: a new or revived row. HEAD_LEAVES, MEMBER_LEAVES: delivered, dead or dropped. HEAL: the sweep came by."""

    JOIN = auto()
    HEAD_LEAVES = auto()
    MEMBER_LEAVES = auto()
    HEAL = auto()


_EMPTY, _ALONE = LaneState.EMPTY, LaneState.HEAD_ALONE
_MEMBERS, _HEADLESS = LaneState.HEAD_AND_MEMBERS, LaneState.HEADLESS

MOVES: dict[tuple[LaneState, LaneEvent], tuple[LaneState, ...]] = {
    (_EMPTY, LaneEvent.JOIN): (_ALONE,),
    (_EMPTY, LaneEvent.HEAL): (_EMPTY,),
    (_ALONE, LaneEvent.JOIN): (_MEMBERS,),
    (_ALONE, LaneEvent.HEAD_LEAVES): (_EMPTY,),
    (_ALONE, LaneEvent.HEAL): (_ALONE,),
    (_MEMBERS, LaneEvent.JOIN): (_MEMBERS,),
    (_MEMBERS, LaneEvent.HEAD_LEAVES): (_ALONE, _MEMBERS),
    (_MEMBERS, LaneEvent.MEMBER_LEAVES): (_ALONE, _MEMBERS),
    (_MEMBERS, LaneEvent.HEAL): (_MEMBERS,),
    (_HEADLESS, LaneEvent.JOIN): (_HEADLESS,),
    (_HEADLESS, LaneEvent.MEMBER_LEAVES): (_HEADLESS,),
    (_HEADLESS, LaneEvent.HEAL): (_ALONE, _MEMBERS),
}
"""Every move there is; where there are two, the members left decide. No other event reaches a lane in that state: an
empty one has nothing to leave it, a head alone no member, and a head whose row is gone brings no outcome. A headless
lane stays so, also when its last member has left, until it is healed or joined (of which the sweep takes care)."""


class LaneTables(Protocol):
    """What lanes read."""

    def row(self, seq: int, sink: int) -> Row | None: ...
    def lane(self, key: str) -> Lane | None: ...
    def members(self, key: str, place: int = 0) -> Iterator[tuple[int, int]]:
        """`(place, seq)` of a lane's members, in order, from `place` on."""


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

    def join(self, row: Row, seq: int, at: int) -> Row:
        """A new or revived row goes to the tail: pending if the lane was empty, else a member. It names its lane, and
        its place, which is greater than that of every row that joined before."""
        assert row.lane is not None
        lane = self.lane(row.lane)
        if lane is None:
            self._now[row.lane] = Lane(seq, 1, at)
            return row
        self._now[row.lane] = Lane(lane.head, lane.depth + 1, lane.since)
        return rows.waiting(row)

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
        return self._promote(row.lane, sink, row.place, lane.depth - 1, at)

    def heal(self, key: str, sink: int, at: int) -> tuple[int, Row, Row] | None:
        """The promotion a lane needs that lost its head; None when its head is there, or nobody waits."""
        lane = self.lane(key)
        head = None if lane is None else self._tables.row(lane.head, sink)
        if head is not None and head.lane == key and head.state is RowState.PENDING:
            return None
        # A lane that lost even its entry is counted, once; the entry of any other has kept count.
        depth = sum(1 for _ in self._tables.members(key)) if lane is None else lane.depth - 1
        return self._promote(key, sink, 0, depth, at)

    def _promote(self, key: str, sink: int, place: int, depth: int, at: int) -> tuple[int, Row, Row] | None:
        """Make the first member from `place` on the head. One whose row cannot be read is passed over."""
        for _, seq in self._tables.members(key, place):
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
