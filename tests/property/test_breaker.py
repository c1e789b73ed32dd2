"""The breaker's core: every (phase, event) lands in a known phase, and its periods keep their bounds."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ankusa.core import breaker as core
from ankusa.core.breaker import BreakerEvent, BreakerSettings, Phase
from schemas.records import Breaker, BreakerState

SETTINGS = BreakerSettings(5, 30_000, 300_000)


def test_every_phase_has_a_move_for_every_event_that_can_reach_it() -> None:
    for phase in Phase:
        for event in (BreakerEvent.CLAIM, BreakerEvent.ALIVE, BreakerEvent.FAILED):
            assert core.MOVES[phase, event] in Phase
        assert phase in core.VERDICTS
    assert [phase for phase, event in core.MOVES if event is BreakerEvent.PROBE_LOST] == [Phase.PROBING]


@given(openings=st.integers(1, 10_000))
def test_an_opening_lasts_between_its_two_bounds(openings: int) -> None:
    assert 30_000 <= core.open_ms(openings, SETTINGS) <= 300_000
    assert core.open_ms(openings + 1, SETTINGS) >= core.open_ms(openings, SETTINGS)


@given(results=st.lists(st.tuples(st.booleans(), st.booleans(), st.integers(0, 100_000)), max_size=60))
def test_any_results_keep_it_sane(results: list[tuple[bool, bool, int]]) -> None:
    breaker, at, in_a_row = core.NEW, 1_000_000, 0
    for alive, probe, elapsed_ms in results:
        at += elapsed_ms
        was = breaker
        breaker = core.resulted(was, alive=alive, probe=probe, at=at, settings=SETTINGS)
        if was.state is BreakerState.CLOSED:
            in_a_row = 0 if alive else in_a_row + 1
            assert (breaker.state is BreakerState.OPEN) == (in_a_row >= SETTINGS.failures)
        elif not probe:
            assert breaker is was, "only a probe's result moves an open breaker"
        else:
            assert (breaker.state is BreakerState.CLOSED) == alive
        if breaker.state is BreakerState.OPEN:
            in_a_row = 0
            assert breaker.until > breaker.at
        else:
            assert breaker.failures < SETTINGS.failures


@given(at=st.integers(0, 10**13), probing=st.booleans())
def test_an_open_breaker_is_half_open_from_its_time_on(at: int, probing: bool) -> None:
    breaker = Breaker(BreakerState.OPEN, 0, 1, 5_000_000, 1)
    phase = core.phase(breaker, at, probing=probing)
    assert phase is (Phase.PROBING if probing else Phase.OPEN if at < 5_000_000 else Phase.HALF_OPEN)


def test_switched_off_an_open_breaker_closes_at_the_next_result() -> None:
    off = BreakerSettings(0, 30_000, 300_000)
    opened = Breaker(BreakerState.OPEN, 0, 3, 9_000_000, 1)
    assert core.resulted(opened, alive=False, probe=False, at=7, settings=off) == Breaker(at=7)
    assert core.resulted(core.NEW, alive=False, probe=False, at=7, settings=off) is core.NEW
