"""The breaker of one sink key: its states, the one table of its moves, and how long it stays open (spec 03).

Decides, never schedules: whether a claim may run, is the probe or is parked, and what an attempt's result makes of the
breaker. Half-open is not a state of its own in the store: it is an open breaker whose time has come with a probe that
lives in memory, so a probe whose process died holds nothing.
"""

from __future__ import annotations

from enum import Enum, auto

from msgspec import Struct

from schemas.records import Breaker, BreakerState


class Phase(Enum):
    """What a breaker is at a moment: CLOSED, OPEN until its time, then HALF_OPEN; PROBING while a probe runs."""

    __hash__ = object.__hash__  # an enum's own is Python, and each attempt asks for several

    CLOSED = auto()
    OPEN = auto()
    HALF_OPEN = auto()
    PROBING = auto()


class BreakerEvent(Enum):
    """ALIVE: an answer that proves that the sink works, a permanent refusal included. FAILED: any other result."""

    __hash__ = object.__hash__

    CLAIM = auto()
    ALIVE = auto()
    FAILED = auto()
    PROBE_LOST = auto()


class Verdict(Enum):
    """What happens to a claimed row: it runs, it runs as the probe, or it is parked."""

    RUN = auto()
    PROBE = auto()
    PARK = auto()


VERDICTS: dict[Phase, Verdict] = {
    Phase.CLOSED: Verdict.RUN,
    Phase.OPEN: Verdict.PARK,
    Phase.HALF_OPEN: Verdict.PROBE,
    Phase.PROBING: Verdict.PARK,
}

MOVES: dict[tuple[Phase, BreakerEvent], Phase] = {
    (Phase.CLOSED, BreakerEvent.CLAIM): Phase.CLOSED,
    (Phase.CLOSED, BreakerEvent.ALIVE): Phase.CLOSED,
    (Phase.CLOSED, BreakerEvent.FAILED): Phase.CLOSED,  # or OPEN, when it is the one too many
    (Phase.OPEN, BreakerEvent.CLAIM): Phase.OPEN,
    (Phase.OPEN, BreakerEvent.ALIVE): Phase.OPEN,
    (Phase.OPEN, BreakerEvent.FAILED): Phase.OPEN,
    (Phase.HALF_OPEN, BreakerEvent.CLAIM): Phase.PROBING,
    (Phase.HALF_OPEN, BreakerEvent.ALIVE): Phase.HALF_OPEN,
    (Phase.HALF_OPEN, BreakerEvent.FAILED): Phase.HALF_OPEN,
    (Phase.PROBING, BreakerEvent.CLAIM): Phase.PROBING,
    (Phase.PROBING, BreakerEvent.ALIVE): Phase.CLOSED,
    (Phase.PROBING, BreakerEvent.FAILED): Phase.OPEN,
    (Phase.PROBING, BreakerEvent.PROBE_LOST): Phase.HALF_OPEN,
}
"""Every move there is. Results of attempts that began before the breaker opened prove nothing about it now: only the
probe's result moves an open breaker. A lost probe moves only what is probing."""


class BreakerSettings(Struct, frozen=True):
    """`failures` in a row open it (0: never); open for `open_ms`, doubling per opening in a row to `max_open_ms`."""

    failures: int
    open_ms: int
    max_open_ms: int


NEW = Breaker()


def phase(breaker: Breaker, at: int, *, probing: bool) -> Phase:
    """What the breaker is at `at`; `probing` says whether a probe runs in memory."""
    if breaker.state is BreakerState.CLOSED:
        return Phase.CLOSED
    if probing:
        return Phase.PROBING
    return Phase.OPEN if at < breaker.until else Phase.HALF_OPEN


def open_ms(openings: int, settings: BreakerSettings) -> int:
    """How long opening number `openings` (from 1) lasts."""
    return min(settings.open_ms << min(openings - 1, 40), settings.max_open_ms)


def resulted(breaker: Breaker, *, alive: bool, probe: bool, at: int, settings: BreakerSettings) -> Breaker:
    """The breaker after an attempt's result. The same value when nothing changed, so that nothing is written.

    With `failures: 0` breakers are off: one that was open from before closes at the first result.
    """
    if settings.failures == 0:
        return breaker if breaker == NEW else Breaker(at=at)
    now = phase(breaker, at, probing=probe)
    after = MOVES[now, BreakerEvent.ALIVE if alive else BreakerEvent.FAILED]
    if now is Phase.PROBING:
        return Breaker(at=at) if after is Phase.CLOSED else _opened(breaker, at, settings)
    if now is not Phase.CLOSED:
        return breaker
    if alive:
        return breaker if breaker.failures == 0 and breaker.openings == 0 else Breaker(at=at)
    if breaker.failures + 1 >= settings.failures:
        return _opened(breaker, at, settings)
    return Breaker(failures=breaker.failures + 1, openings=breaker.openings, at=at)


def _opened(breaker: Breaker, at: int, settings: BreakerSettings) -> Breaker:
    openings = breaker.openings + 1
    return Breaker(BreakerState.OPEN, 0, openings, at + open_ms(openings, settings), at)
