"""The breaker's core: every (phase, event) lands in a known phase, and its periods keep their bounds."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ankusa.core import breaker as core
from ankusa.core.breaker import BreakerEvent, BreakerSettings, Phase, Verdict
from ankusa.dispatch.breakers import Breakers
from schemas.config import Dispatch
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


KEY, AT = "a/s/0/http", 1_700_000_000_000
SWITCH = Dispatch(breaker_failures=2, breaker_open_ms=1000, breaker_max_open_ms=4000)


def in_phase(phase: Phase, failures: int = 0) -> Breakers:
    """A node's breakers whose one key is in `phase` at AT, brought there by events."""
    breakers = Breakers({}, SWITCH)
    if phase is Phase.CLOSED:
        for _ in range(failures):
            breakers.resulted(KEY, AT, alive=False, probe=False)
        return breakers
    opened_at = AT if phase is Phase.OPEN else AT - 1000
    for _ in range(SWITCH.breaker_failures):
        breakers.resulted(KEY, opened_at, alive=False, probe=False)
    if phase is Phase.PROBING:
        assert breakers.verdict(KEY, AT) is Verdict.PROBE
    return breakers


@pytest.mark.parametrize("failures", [0, 1])
@pytest.mark.parametrize(("phase", "event"), list(product(Phase, BreakerEvent)))
def test_every_event_in_every_phase_lands_where_the_table_says(
    phase: Phase, event: BreakerEvent, failures: int
) -> None:
    breakers = in_phase(phase, failures)
    assert breakers.phase(KEY, AT) is phase
    if event is BreakerEvent.CLAIM:
        assert breakers.verdict(KEY, AT) is core.VERDICTS[phase]
    elif event is BreakerEvent.PROBE_LOST:
        breakers.probe_lost(KEY)
    else:
        breakers.resulted(KEY, AT, alive=event is BreakerEvent.ALIVE, probe=phase is Phase.PROBING)
    expected = core.MOVES.get((phase, event), phase)  # a lost probe of nobody's changes nothing
    if (phase, event, failures) == (Phase.CLOSED, BreakerEvent.FAILED, SWITCH.breaker_failures - 1):
        expected = Phase.OPEN  # the one too many
    assert breakers.phase(KEY, AT) is expected


@pytest.mark.parametrize(("phase", "event"), list(product(Phase, BreakerEvent)))
def test_what_a_restart_finds_is_the_same_but_for_the_probe(phase: Phase, event: BreakerEvent) -> None:
    """Folded from what it publishes: open stays open, and a probe that died with its process leaves it half-open."""
    breakers = in_phase(phase)
    if event in (BreakerEvent.ALIVE, BreakerEvent.FAILED):
        breakers.resulted(KEY, AT, alive=event is BreakerEvent.ALIVE, probe=phase is Phase.PROBING)
    stored = {move.key: move.breaker for move in breakers.take_moves(AT)}
    after = breakers.phase(KEY, AT)
    found = Breakers(stored, SWITCH).phase(KEY, AT)
    assert found is (Phase.HALF_OPEN if after is Phase.PROBING else after)
