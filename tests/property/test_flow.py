"""Flows of records: what is refused while nobody answers, and how a flow learns that somebody does again."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from streams.kafka.flow import STALL_S, Flow

EVENTS = st.lists(st.tuples(st.sampled_from(["send", "ack", "fail"]), st.floats(0, 3)), max_size=60)


def test_a_flow_that_is_answered_admits() -> None:
    flow, now = Flow(), 0.0
    for _ in range(10):
        assert flow.admits(now)
        flow.sent(now)
        now += STALL_S * 0.9
        flow.acked(now)
    assert not flow.failing


def test_records_acknowledged_meanwhile_keep_a_slow_one_from_stalling() -> None:
    flow = Flow()
    flow.sent(0.0)
    for step in range(1, 10):
        flow.sent(step * 0.5)
        flow.acked(step * 0.5 + 0.1)
        assert flow.admits(step * 0.5 + 0.2)


def test_silence_stalls_and_the_first_after_it_tries() -> None:
    flow = Flow()
    flow.sent(0.0)
    flow.sent(0.5)
    assert flow.admits(STALL_S - 0.01)
    assert not flow.admits(STALL_S)
    flow.failed(STALL_S)
    assert not flow.admits(STALL_S)
    flow.failed(STALL_S)
    assert flow.failing
    assert flow.admits(STALL_S)
    flow.sent(5.0)
    assert not flow.admits(5.0)  # one at a time
    flow.acked(5.1)
    assert flow.admits(5.1)
    assert not flow.failing


def test_a_refusal_by_a_broker_that_answers_is_the_records_own() -> None:
    flow = Flow()
    flow.sent(0.0)
    flow.sent(0.0)
    flow.failed(0.1)
    assert not flow.failing
    assert flow.admits(0.2)


def test_a_long_silence_without_records_is_no_stall() -> None:
    flow = Flow()
    flow.sent(0.0)
    flow.acked(0.1)
    assert flow.admits(1000.0)
    flow.sent(1000.0)
    assert flow.admits(1000.5)


@given(EVENTS)
def test_whatever_happens(events: list[tuple[str, float]]) -> None:
    """An acknowledgement always frees it, an empty one always admits, and none admits behind a stall."""
    flow, now = Flow(), 0.0
    for event, pause in events:
        now += pause
        if event == "send" and flow.admits(now):
            flow.sent(now)
        elif event == "ack" and flow.pending:
            flow.acked(now)
            assert flow.admits(now)
        elif event == "fail" and flow.pending:
            flow.failed(now)
        assert flow.pending >= 0
        if flow.pending == 0:
            assert flow.admits(now)
        if flow.stalled(now):
            assert not flow.admits(now)
        assert not flow.failing or flow.pending == 0 or not flow.admits(now)
