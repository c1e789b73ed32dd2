"""Breakers on a host (spec 03 "Failure"): opening, parking, probes, doubling, horizon, and what a crash leaves."""

from __future__ import annotations

from itertools import pairwise

from schemas.config import Retry
from schemas.records import OutcomeKind, RowState
from tests.contract.conftest import Start
from tests.contract.host import STEADY, Hook, hooks
from tests.contract.sinks import OK, PERMANENT, TRANSIENT, ScriptedSink, hang, slow

BREAKER = {"breaker_failures": 5, "breaker_open_ms": 30_000, "breaker_max_open_ms": 300_000}
DAY_MS = 86_400_000
FOR_EVER = Retry(base_ms=1000, max_ms=60_000, max_attempts=10_000, max_elapsed_ms=DAY_MS, jitter=False)


def test_five_failures_in_a_row_open_it_and_what_waits_is_parked_unspent(start: Start) -> None:
    host = start(concurrency=1, **BREAKER)
    sink = ScriptedSink(TRANSIENT)
    host.source("orders", sink, retry=FOR_EVER)
    host.commit(hooks(20))
    host.settle()
    assert len(sink.got) == 5
    opened_at = sink.times()[-1]
    parked = host.rows("hook-0019")[0]
    assert (parked.attempts, parked.state) == (0, RowState.PENDING)
    assert parked.at == opened_at + 30_000
    assert host.attempts("hook-0019")[-1].kind is OutcomeKind.PARKED


def test_one_probe_closes_it_and_the_rest_follows(start: Start) -> None:
    host = start(concurrency=1, **BREAKER)
    sink = ScriptedSink(*[TRANSIENT] * 5, slow(10), OK)
    host.source("orders", sink, retry=FOR_EVER)
    host.commit(hooks(5))
    host.settle()
    host.commit(hooks(20, prefix="later"))
    host.advance(29_000)
    assert len(sink.got) == 5
    host.advance(5_000)
    assert host.counts() == (0, 0, 0)
    assert len(sink.got) == 30


def test_a_probe_that_fails_opens_it_longer_each_time(start: Start) -> None:
    host = start(concurrency=1, **BREAKER)
    sink = ScriptedSink(TRANSIENT)
    host.source("orders", sink, retry=FOR_EVER)
    host.commit(hooks(50))
    host.advance(30_000 + 60_000 + 120_000 + 240_000 + 300_000 + 300_000 + 60_000)
    times = sink.times()
    probes = times[4:]
    assert len(times) - 5 == 6
    gaps = [later - earlier for earlier, later in pairwise(probes)]
    for gap, open_ms in zip(gaps, [30_000, 60_000, 120_000, 240_000, 300_000, 300_000], strict=True):
        assert open_ms <= gap <= open_ms + 2_000


def test_a_probe_answered_410_closes_it(start: Start) -> None:
    host = start(concurrency=1, **BREAKER)
    sink = ScriptedSink(*[TRANSIENT] * 5, PERMANENT, OK)
    host.source("orders", sink, retry=FOR_EVER)
    host.commit(hooks(10))
    host.advance(35_000)
    assert host.counts() == (0, 0, 1)


def test_a_dead_sink_leaves_its_neighbours_alone(start: Start) -> None:
    host = start(concurrency=4, **BREAKER)
    dead, alive = ScriptedSink(TRANSIENT), ScriptedSink(OK)
    host.source("dead", dead, retry=FOR_EVER)
    host.source("alive", alive, retry=FOR_EVER)
    host.commit(hooks(500, prefix="dead", source_id="dead"))
    host.commit(hooks(100, prefix="alive", source_id="alive"))
    host.advance(500)
    assert len(alive.got) == 100
    assert len(dead.got) <= 8


def test_a_crash_keeps_it_open_and_sends_one_probe(start: Start) -> None:
    host = start(concurrency=1, **BREAKER)
    sinks = [ScriptedSink(TRANSIENT) for _ in range(5)]
    for number, sink in enumerate(sinks):
        host.source(f"s{number}", sink, retry=FOR_EVER)
        host.commit(hooks(40, prefix=f"s{number}", source_id=f"s{number}"))
    host.advance(1_000)
    tried = [len(sink.got) for sink in sinks]
    host.crash()
    host.advance(20_000)
    assert [len(sink.got) for sink in sinks] == tried
    host.advance(15_000)
    assert [len(sink.got) for sink in sinks] == [count + 1 for count in tried]


def test_a_probe_that_died_with_its_process_holds_nothing(start: Start) -> None:
    host = start(concurrency=1, attempt_timeout_ms=3_600_000, **BREAKER)
    sink = ScriptedSink(*[TRANSIENT] * 5, hang, OK)
    host.source("orders", sink, retry=FOR_EVER)
    host.commit(hooks(10))
    host.advance(31_000)
    assert len(sink.got) == 6
    host.crash()
    host.advance(40_000)
    assert host.counts() == (0, 0, 0)


HOUR_MS = 3_600_000
PROBES_S = [30, 90, 210, 450, *range(750, 3_600, 300)]
"""When the probes of a dead sink's first hour go, seconds after its breaker opened: after 30, 60, 120, 240 s, and then
every 300."""


def check_asked_in_the_hour(sink: ScriptedSink) -> None:
    """Five attempts, and each probe at its time, alone."""
    times = sink.times()
    assert len(times) == 5 + len(PROBES_S) == 19
    opened_at = times[4]
    for at, due_s in zip(times[5:], PROBES_S, strict=True):
        assert 0 <= at - opened_at - due_s * 1000 <= 1_000
    assert sink.most_running == 1


def test_a_sink_down_for_an_hour_spends_five_attempts_and_its_probes_and_its_rows_die_at_the_horizon(
    start: Start,
) -> None:
    host = start(concurrency=1, **BREAKER)
    sink = ScriptedSink(TRANSIENT)
    policy = Retry(base_ms=1000, max_ms=60_000, max_attempts=84, max_elapsed_ms=HOUR_MS, jitter=False)
    host.source("orders", sink, retry=policy)
    sent, began_at = hooks(30), host.at
    host.commit(sent)
    host.advance(began_at + HOUR_MS - 1 - host.at)
    assert host.counts() == (30, 0, 0)  # to the last millisecond
    host.advance(1_000)
    assert host.counts() == host.scanned_counts() == (0, 0, 30)
    check_asked_in_the_hour(sink)
    for hook in sent:
        (row,) = host.rows(hook.id).values()
        assert row.attempts == len(sink.attempts_of(hook.id))
        assert row.error == "retry_horizon"
        assert 0 <= row.at - (row.first_at + HOUR_MS) <= 50
    assert min(len(sink.attempts_of(hook.id)) for hook in sent) == 0  # some died without an attempt of their own
    host.advance(HOUR_MS)
    assert len(sink.got) == 19  # with nobody left to send, nobody probes


def test_a_sink_down_for_an_hour_and_back_before_the_horizon_costs_nothing_but_time(start: Start) -> None:
    host = start(concurrency=1, **BREAKER)
    sink = ScriptedSink(*[TRANSIENT] * 19, OK)
    host.source("orders", sink, retry=FOR_EVER)
    sent = hooks(30)
    host.commit(sent)
    host.advance(HOUR_MS)
    assert host.counts() == (30, 0, 0)
    check_asked_in_the_hour(sink)
    tried = {hook.id: len(sink.attempts_of(hook.id)) for hook in sent}
    assert {hook.id: host.rows(hook.id)[0].attempts for hook in sent} == tried
    host.advance(300_000)
    assert host.counts() == (0, 0, 0)
    assert len(sink.got) == 19 + 30
    assert {hook.id: sink.attempts_of(hook.id) for hook in sent} == {
        hook_id: list(range(1, count + 2)) for hook_id, count in tried.items()
    }


def test_the_horizon_of_a_row_that_only_parked_begins_at_its_first_park(start: Start) -> None:
    host = start(concurrency=1, **BREAKER)
    sink = ScriptedSink(TRANSIENT)
    host.source("orders", sink, retry=Retry(base_ms=1000, max_ms=1000, max_elapsed_ms=100_000, jitter=False))
    host.commit(hooks(5))
    host.settle()
    host.advance(10_000)
    host.commit([Hook("late")])
    host.settle()
    first_parked_at = host.rows("late")[0].first_at
    host.advance(95_000)
    assert host.rows("late")[0].state is RowState.PENDING
    host.advance(60_000)
    died = host.rows("late")[0]
    assert died.state is RowState.DEAD
    assert died.at >= first_parked_at + 100_000


def test_off_it_never_parks(start: Start) -> None:
    host = start(breaker_failures=0)
    sink = ScriptedSink(TRANSIENT)
    host.source("orders", sink, retry=STEADY)
    host.commit(hooks(20))
    host.advance(10_000)
    assert len(sink.got) >= 60


def test_successes_between_failures_keep_it_closed(start: Start) -> None:
    host = start(concurrency=1, **BREAKER)
    sink = ScriptedSink(*([TRANSIENT] * 4 + [OK]) * 10, OK)
    host.source("orders", sink, retry=FOR_EVER)
    host.commit(hooks(20))
    host.advance(20_000)
    assert host.counts() == (0, 0, 0)
    assert all(kind.kind is not OutcomeKind.PARKED for kind in host.attempts("hook-0000"))


def test_switched_off_while_open_it_parks_no_more(start: Start) -> None:
    host = start(concurrency=1, **BREAKER)
    sink = ScriptedSink(*[TRANSIENT] * 5, OK)
    host.source("orders", sink, retry=FOR_EVER)
    host.commit(hooks(5))
    host.settle()
    host.reconfigure(breaker_failures=0)
    host.commit([Hook("now")])
    host.settle()
    assert "now" in sink.ids


class _Stumbles(ScriptedSink):
    """A sink that breaks as its attempt begins, while `broken`: it is asked once when the row is queued, once then."""

    broken = False
    asked = 0

    @property
    def inline_max_bytes(self) -> int | None:
        self.asked += self.broken
        if self.broken and self.asked % 2 == 0:
            raise AttributeError("inline_max_bytes")
        return None

    @inline_max_bytes.setter
    def inline_max_bytes(self, value: int | None) -> None:
        """The script's own is not wanted."""


def test_a_probe_that_could_not_begin_leaves_the_next_one_its_turn(start: Start) -> None:
    host = start(concurrency=1, **BREAKER)
    sink = _Stumbles(*[TRANSIENT] * 5, OK)
    host.source("orders", sink, retry=FOR_EVER)
    host.commit([Hook("a")])
    host.advance(20_000)
    assert len(sink.got) == 5
    sink.broken = True
    host.advance(30_000)
    assert sink.asked > 0
    assert len(sink.got) == 5
    sink.broken = False
    host.advance(10_000)
    assert host.counts() == (0, 0, 0)
