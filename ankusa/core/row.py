"""A delivery row: its states, the one table of its moves, and what each move makes of it.

Owns every change of a row's state; the fold calls it, nobody else builds a changed row. Never looks at
the clock: times come in with the event. A claim is volatile (it lives in the dispatcher of the node that
owns the row), so in the store a claimed row is a pending one, and an outcome whose generation matches
proves the claim it came from.
"""

from __future__ import annotations

from enum import Enum, auto

from msgspec.structs import replace

from schemas.records import Outcome, OutcomeKind, Row, RowState


class Place(Enum):
    """Every place a row can be. ABSENT is before its commit and after its delivery."""

    __hash__ = object.__hash__  # an enum's own is Python, and each hook asks for several

    ABSENT = auto()
    MEMBER = auto()
    PENDING = auto()
    CLAIMED = auto()
    DEAD = auto()


class Event(Enum):
    __hash__ = object.__hash__

    COMMIT = auto()
    JOIN = auto()
    PROMOTE = auto()
    CLAIM = auto()
    UNCLAIM = auto()
    DELIVER = auto()
    RETRY = auto()
    PARK = auto()
    KILL = auto()
    DROP = auto()
    REVIVE = auto()


MOVES: dict[tuple[Place, Event], Place] = {
    (Place.ABSENT, Event.COMMIT): Place.PENDING,
    (Place.ABSENT, Event.JOIN): Place.MEMBER,
    (Place.MEMBER, Event.PROMOTE): Place.PENDING,
    (Place.MEMBER, Event.KILL): Place.DEAD,
    (Place.MEMBER, Event.DROP): Place.ABSENT,
    (Place.PENDING, Event.CLAIM): Place.CLAIMED,
    (Place.PENDING, Event.KILL): Place.DEAD,
    (Place.PENDING, Event.DROP): Place.ABSENT,
    (Place.CLAIMED, Event.UNCLAIM): Place.PENDING,
    (Place.CLAIMED, Event.DELIVER): Place.ABSENT,
    (Place.CLAIMED, Event.RETRY): Place.PENDING,
    (Place.CLAIMED, Event.PARK): Place.PENDING,
    (Place.CLAIMED, Event.KILL): Place.DEAD,
    (Place.CLAIMED, Event.DROP): Place.ABSENT,
    (Place.DEAD, Event.REVIVE): Place.PENDING,
    (Place.DEAD, Event.JOIN): Place.MEMBER,
}
"""Every move there is. A pair that is not here does nothing: the event is late, doubled or for another row."""

EVENT_OF: dict[OutcomeKind, Event] = {
    OutcomeKind.DELIVERED: Event.DELIVER,
    OutcomeKind.RETRY: Event.RETRY,
    OutcomeKind.PARKED: Event.PARK,
    OutcomeKind.DEAD: Event.KILL,
    OutcomeKind.REVIVED: Event.REVIVE,
    OutcomeKind.DROPPED: Event.DROP,
}


STORED_PLACE: dict[RowState, Place] = {
    RowState.PENDING: Place.CLAIMED,
    RowState.DEAD: Place.DEAD,
    RowState.MEMBER: Place.MEMBER,
}
"""Where the row was when an outcome of its generation was made: a pending row then was a claimed one."""


def move(place: Place, event: Event) -> Place | None:
    """Where `event` takes a row at `place`, None when that move does not exist."""
    return MOVES.get((place, event))


def new_row(tenant_id: str, source_id: str, sink_type: str, at: int, size_bytes: int) -> Row:
    """The row a commit makes: pending, due at once (`at`, unix ms)."""
    return Row(RowState.PENDING, tenant_id, source_id, sink_type, at, size_bytes)


def settle(row: Row, outcome: Outcome, at: int) -> Row | None:
    """The row after an outcome of its own generation, None when it is gone. `at` is the record's log time.

    Raises ValueError for an outcome that no claim of a pending row can bring (the caller checks staleness first).
    """
    place = STORED_PLACE[row.state]
    target = move(place, EVENT_OF[outcome.kind])
    if target is None:
        raise ValueError(f"no move {outcome.kind.name} from {place.name}")
    if target is Place.ABSENT:
        return None
    attempted = outcome.attempt > 0
    return replace(
        row,
        state=RowState.DEAD if target is Place.DEAD else RowState.PENDING,
        at=at if target is Place.DEAD else outcome.due_at,
        attempts=outcome.attempt if attempted else row.attempts,
        generation=row.generation + 1,
        first_at=_first_at(row, outcome),
        error=outcome.error if outcome.error is not None else row.error,
        error_class=outcome.error_class if outcome.error_class is not None else row.error_class,
    )


def _first_at(row: Row, outcome: Outcome) -> int:
    """The start of the row's horizon: its first attempt, or its first park while it has never run."""
    if row.attempts == 0 and outcome.attempt > 0:
        return outcome.started_at
    return row.first_at or (outcome.at if outcome.kind is OutcomeKind.PARKED else 0)


def revive(row: Row, replay_id: str, at: int) -> Row:
    """A dead row put back by a replay: due at `at`, with a fresh attempt budget and horizon, its last error kept."""
    if move(STORED_PLACE[row.state], Event.REVIVE) is None:
        raise ValueError("only a dead row is revived")
    return replace(
        row, state=RowState.PENDING, at=at, attempts=0, first_at=0, generation=row.generation + 1, replay_id=replay_id
    )


def waiting(row: Row) -> Row:
    """A new or revived row that waits at its place in its lane instead of being due."""
    return replace(row, state=RowState.MEMBER)


def promoted(row: Row, at: int) -> Row:
    """A member that has become its lane's head: due at `at`."""
    if move(STORED_PLACE[row.state], Event.PROMOTE) is None:
        raise ValueError("only a member is promoted")
    return replace(row, state=RowState.PENDING, at=at)
