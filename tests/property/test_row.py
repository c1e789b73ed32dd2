"""A row's moves: every place and event has a known answer, and what a move makes of a row is what its place says."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ankusa.core import row as rows
from ankusa.core.row import EVENT_OF, MOVES, STORED_PLACE, Event, Place
from schemas.records import ErrorClass, Outcome, OutcomeKind, Row, RowState

AT = 1_700_000_000_000
ROWS = st.builds(
    Row,
    state=st.sampled_from(RowState),
    tenant_id=st.just("a"),
    source_id=st.just("s"),
    sink_type=st.just("http"),
    at=st.integers(0, AT),
    size_bytes=st.integers(0, 10**9),
    attempts=st.integers(0, 100),
    generation=st.integers(0, 10_000),
    first_at=st.one_of(st.just(0), st.integers(1, AT)),
    error=st.one_of(st.none(), st.text(max_size=5)),
    error_class=st.one_of(st.none(), st.sampled_from(ErrorClass)),
    lane=st.just("a/s/0/http/k"),
)


@pytest.mark.parametrize(("place", "event"), list(product(Place, Event)))
def test_every_move_lands_in_a_known_place_or_does_not_exist(place: Place, event: Event) -> None:
    target = rows.move(place, event)
    assert target is None or target in Place
    assert (target is None) == ((place, event) not in MOVES)


def test_every_place_can_be_reached_and_left() -> None:
    assert set(MOVES.values()) == set(Place)
    assert {place for place, _ in MOVES} == set(Place)
    assert {event for _, event in MOVES} == set(Event)
    assert set(EVENT_OF) == set(OutcomeKind)
    assert set(STORED_PLACE) == set(RowState)


def test_only_an_attempt_of_a_claimed_row_delivers_or_retries_it() -> None:
    assert [place for place, event in MOVES if event in (Event.DELIVER, Event.RETRY)] == [Place.CLAIMED] * 2


def test_only_a_dead_row_is_revived_and_nothing_else_happens_to_one() -> None:
    assert {event for place, event in MOVES if place is Place.DEAD} == {Event.REVIVE, Event.JOIN}


@given(ROWS, st.sampled_from(OutcomeKind), st.booleans(), st.integers(AT, AT + 10**9))
def test_an_outcome_makes_of_a_row_what_its_move_says(
    row: Row, kind: OutcomeKind, attempted: bool, due_at: int
) -> None:
    attempt = row.attempts + 1 if attempted else 0
    outcome = Outcome(1, 0, row.generation, kind, AT, AT - 5, attempt, due_at, "e", ErrorClass.TRANSIENT)
    target = rows.move(STORED_PLACE[row.state], EVENT_OF[kind])
    if target is None:
        with pytest.raises(ValueError, match="no move"):
            rows.settle(row, outcome, AT + 7)
        return
    after = rows.settle(row, outcome, AT + 7)
    if target is Place.ABSENT:
        assert after is None
        return
    assert after is not None
    assert after.generation == row.generation + 1
    assert after.attempts == (attempt if attempted else row.attempts)
    assert (after.error, after.error_class) == ("e", ErrorClass.TRANSIENT)
    assert (after.state, after.at) == ((RowState.DEAD, AT + 7) if target is Place.DEAD else (RowState.PENDING, due_at))
    if row.attempts and row.first_at:  # a row that was attempted knows since when
        assert after.first_at == row.first_at
    assert (after.tenant_id, after.sink_type, after.size_bytes) == (row.tenant_id, row.sink_type, row.size_bytes)


@given(ROWS)
def test_a_revived_row_starts_over_and_keeps_what_it_died_of(row: Row) -> None:
    if row.state is not RowState.DEAD:
        with pytest.raises(ValueError, match="dead"):
            rows.revive(row, "job", AT)
        return
    after = rows.revive(row, "job", AT)
    assert (after.state, after.at, after.attempts, after.first_at) == (RowState.PENDING, AT, 0, 0)
    assert (after.generation, after.replay_id) == (row.generation + 1, "job")
    assert (after.error, after.error_class) == (row.error, row.error_class)


@given(ROWS)
def test_only_a_member_is_promoted(row: Row) -> None:
    if row.state is not RowState.MEMBER:
        with pytest.raises(ValueError, match="member"):
            rows.promoted(row, AT)
        return
    after = rows.promoted(row, AT)
    assert (after.state, after.at, after.generation) == (RowState.PENDING, AT, row.generation)
