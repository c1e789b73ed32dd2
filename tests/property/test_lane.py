"""A lane's moves: every state and event has a known answer, and what becomes of a lane is what its table says."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from ankusa.core import row as rows
from ankusa.core.lane import MOVES, LaneEvent, Lanes, LaneState
from schemas.records import Lane, Row, RowState

AT = 1_700_000_000_000
KEY = "a/s/0/http/k"


class OneLane:
    """Tables with one lane and its rows, changed as a fold changes them; every event is a record of its own."""

    def __init__(self) -> None:
        self.rows: dict[int, Row] = {}
        self.entry: Lane | None = None
        self.number = 0

    def row(self, seq: int, sink: int) -> Row | None:
        return self.rows.get(seq)

    def lane(self, key: str) -> Lane | None:
        return self.entry

    def members(self, key: str, place: int = 0) -> Iterator[tuple[int, int]]:
        found = [(row.place, seq) for seq, row in self.rows.items() if row.state is RowState.MEMBER]
        return iter(sorted(one for one in found if one[0] >= place))

    # -- events --------------------------------------------------------------------

    def _fold(self, lanes: Lanes, promotion: tuple[int, Row, Row] | None) -> None:
        if promotion is not None:
            seq, before, after = promotion
            assert self.rows[seq] == before
            self.rows[seq] = after
        for _, was, now in lanes.changed():
            assert was == self.entry
            self.entry = now

    def join(self) -> None:
        self.number += 1
        new = rows.new_row("a", "s", "http", AT, 1)
        row = Row(**{name: getattr(new, name) for name in new.__struct_fields__} | {"lane": KEY, "place": self.number})
        lanes = Lanes(self)
        joined = lanes.join(row, self.number, AT + self.number)
        self.rows[self.number] = joined
        self._fold(lanes, None)

    def leave(self, seq: int) -> None:
        lanes = Lanes(self)
        promotion = lanes.leave(self.rows[seq], seq, 0, AT)
        del self.rows[seq]
        self._fold(lanes, promotion)

    def heal(self) -> None:
        lanes = Lanes(self)
        self._fold(lanes, lanes.heal(KEY, 0, AT))

    def lose_head(self) -> None:
        assert self.entry is not None
        del self.rows[self.entry.head]

    # -- what it is ----------------------------------------------------------------

    def waiting(self) -> list[int]:
        return [seq for _, seq in self.members(KEY)]

    def state(self) -> LaneState:
        if self.entry is None:
            return LaneState.EMPTY
        if self.entry.head not in self.rows:
            return LaneState.HEADLESS
        return LaneState.HEAD_AND_MEMBERS if self.waiting() else LaneState.HEAD_ALONE


def made(state: LaneState, members: int = 1) -> OneLane:
    """A lane in a state; where members wait in it, so many."""
    lane = OneLane()
    if state is not LaneState.EMPTY:
        lane.join()
    if state in (LaneState.HEAD_AND_MEMBERS, LaneState.HEADLESS):
        for _ in range(members):
            lane.join()
    if state is LaneState.HEADLESS:
        lane.lose_head()
    assert lane.state() is state
    return lane


@pytest.mark.parametrize("members", [1, 2, 5])
@pytest.mark.parametrize(("state", "event"), list(product(LaneState, LaneEvent)))
def test_every_event_in_every_state_lands_in_a_state_of_the_table(
    state: LaneState, event: LaneEvent, members: int
) -> None:
    lane = made(state, members)
    entry = lane.entry
    if (state, event) not in MOVES:
        # It cannot happen: there is no such row that could leave.
        head = None if entry is None else lane.rows.get(entry.head)
        assert (event is LaneEvent.HEAD_LEAVES and head is None) or (
            event is LaneEvent.MEMBER_LEAVES and not lane.waiting()
        )
        return
    if event is LaneEvent.JOIN:
        lane.join()
    elif event is LaneEvent.HEAL:
        lane.heal()
    else:
        assert entry is not None
        lane.leave(entry.head if event is LaneEvent.HEAD_LEAVES else lane.waiting()[-1])
    assert lane.state() in MOVES[state, event]


def test_every_state_can_be_left_and_every_event_is_known() -> None:
    assert {state for state, _ in MOVES} == set(LaneState)
    assert {event for _, event in MOVES} == set(LaneEvent)
    landed = {state for states in MOVES.values() for state in states}
    assert landed == set(LaneState)
    assert all(states and len(set(states)) == len(states) for states in MOVES.values())


def test_a_row_that_leaves_a_lane_without_an_entry_changes_nothing() -> None:
    lane = made(LaneState.HEAD_AND_MEMBERS, 2)
    lane.entry = None
    lane.leave(2)
    assert (lane.entry, sorted(lane.rows)) == (None, [1, 3])
    lane.rows.pop(1)
    lane.heal()
    assert lane.entry == Lane(3, 1, AT)


class LaneMachine(RuleBasedStateMachine):
    """Any sequence: rows become heads in the order in which they joined, one at a time, and none is left behind."""

    def __init__(self) -> None:
        super().__init__()
        self.lane = OneLane()
        self.joined: list[int] = []
        self.heads: list[int] = []

    def see(self, event: LaneEvent, before: LaneState) -> None:
        assert self.lane.state() in MOVES[before, event]
        entry = self.lane.entry
        if entry is not None and (not self.heads or self.heads[-1] != entry.head):
            self.heads.append(entry.head)

    @rule()
    def join(self) -> None:
        before = self.lane.state()
        self.lane.join()
        self.joined.append(self.lane.number)
        self.see(LaneEvent.JOIN, before)

    @precondition(lambda self: self.lane.entry is not None and self.lane.entry.head in self.lane.rows)
    @rule()
    def head_leaves(self) -> None:
        before, entry = self.lane.state(), self.lane.entry
        assert entry is not None
        self.lane.leave(entry.head)
        self.see(LaneEvent.HEAD_LEAVES, before)

    @precondition(lambda self: self.lane.waiting())
    @rule(data=st.data())
    def member_leaves(self, data: st.DataObject) -> None:
        before = self.lane.state()
        self.lane.leave(data.draw(st.sampled_from(self.lane.waiting())))
        self.see(LaneEvent.MEMBER_LEAVES, before)

    @rule()
    def heal(self) -> None:
        before = self.lane.state()
        if before is LaneState.HEADLESS and not self.lane.waiting():
            return  # the sweep finds lanes by their members
        self.lane.heal()
        self.see(LaneEvent.HEAL, before)

    @precondition(lambda self: self.lane.state() is LaneState.HEAD_AND_MEMBERS)
    @rule()
    def its_head_is_lost(self) -> None:
        self.lane.lose_head()

    @invariant()
    def heads_come_in_the_order_of_joining(self) -> None:
        assert self.heads == sorted(set(self.heads))

    @invariant()
    def one_row_at_most_is_due_and_the_depth_is_right(self) -> None:
        due = [seq for seq, row in self.lane.rows.items() if row.state is RowState.PENDING]
        assert len(due) <= 1
        entry = self.lane.entry
        if entry is None:
            assert not self.lane.rows
        elif due:
            assert due == [entry.head]
            assert entry.depth == len(self.lane.rows)

    def teardown(self) -> None:
        self.heal()
        while self.lane.entry is not None and self.lane.entry.head in self.lane.rows:
            self.head_leaves()
        assert not self.lane.rows


TestLane = LaneMachine.TestCase
TestLane.settings = settings(max_examples=60, stateful_step_count=30)
