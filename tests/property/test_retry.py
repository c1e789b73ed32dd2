"""The retry decision: its bounds hold for every policy, attempt, clock and draw."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ankusa.core import retry
from ankusa.core.retry import ERROR_LIMIT, RETRY_AFTER_CAP_MS
from schemas.config import Retry, RetryOverride, retry_policy
from schemas.records import ErrorClass, OutcomeKind, Row, RowState

AT = 1_700_000_000_000
POLICIES = st.builds(
    Retry,
    base_ms=st.integers(1, 3_600_000),
    max_ms=st.integers(1, 86_400_000),
    max_attempts=st.integers(1, 10_000),
    max_elapsed_ms=st.integers(1, 31_536_000_000),
    jitter=st.booleans(),
)
DRAWS = st.floats(0, 1, exclude_max=True)
CLASSES = st.sampled_from(ErrorClass)


def row(attempts: int, first_at: int) -> Row:
    return Row(RowState.PENDING, "a", "s", "http", AT, 1, attempts=attempts, first_at=first_at)


@given(POLICIES, st.integers(1, 10_000), DRAWS)
def test_a_delay_is_between_half_and_the_whole_of_its_step(policy: Retry, attempt: int, draw: float) -> None:
    step_ms = min(policy.base_ms * 2 ** (attempt - 1), policy.max_ms)
    delay = retry.backoff_ms(policy, attempt, draw)
    assert 1 <= delay <= policy.max_ms
    assert isinstance(delay, int)
    if policy.jitter:
        assert step_ms // 2 <= delay <= step_ms
    else:
        assert delay == step_ms


@given(POLICIES, DRAWS)
def test_steps_do_not_shrink(policy: Retry, draw: float) -> None:
    delays = [retry.backoff_ms(policy, attempt, draw) for attempt in range(1, 70)]
    assert delays == sorted(delays)


@given(
    POLICIES,
    st.integers(0, 9_999),
    st.integers(0, 10**9),
    st.integers(0, 100_000),
    CLASSES,
    st.integers(0, 10**12),
    DRAWS,
)
def test_a_failure_is_a_retry_within_the_policy_or_dead(
    policy: Retry, attempts: int, age_ms: int, took_ms: int, error_class: ErrorClass, asked_ms: int, draw: float
) -> None:
    started_at = AT
    at = AT + took_ms
    first_at = started_at - age_ms if attempts else 0
    decision = retry.after_failure(row(attempts, first_at), started_at, at, "e", error_class, asked_ms, policy, draw)
    assert (decision.error, decision.error_class) == ("e", error_class)
    horizon = (first_at or started_at) + policy.max_elapsed_ms
    if error_class is ErrorClass.PERMANENT or attempts + 1 >= policy.max_attempts:
        assert decision.kind is OutcomeKind.DEAD
    if decision.kind is OutcomeKind.DEAD:
        assert decision.due_at == 0
        return
    assert decision.kind is OutcomeKind.RETRY
    assert at < decision.due_at <= horizon
    assert decision.due_at - at <= max(policy.max_ms, RETRY_AFTER_CAP_MS)
    if error_class is ErrorClass.RETRY_AFTER:
        assert decision.due_at - at >= min(asked_ms, RETRY_AFTER_CAP_MS)
    else:
        assert decision.due_at - at <= policy.max_ms


@given(POLICIES, st.integers(0, 100), st.integers(0, 10**10), st.integers(0, 10**9), CLASSES)
def test_a_park_never_goes_past_the_horizon_and_ends_there(
    policy: Retry, attempts: int, age_ms: int, open_ms: int, error_class: ErrorClass
) -> None:
    first_at = AT - age_ms if age_ms else 0
    decision = retry.parked(row(attempts, first_at), AT + open_ms, AT, policy)
    horizon = (first_at or AT) + policy.max_elapsed_ms
    if decision.kind is OutcomeKind.PARKED:
        assert decision.due_at == min(AT + open_ms, horizon)
    else:
        assert decision.kind is OutcomeKind.DEAD
        assert decision.error == "retry_horizon"
        assert first_at
        assert horizon <= AT


@given(st.text(max_size=2000))
def test_errors_are_kept_bounded(error: str) -> None:
    decision = retry.after_failure(row(0, 0), AT, AT, error, ErrorClass.TRANSIENT, 0, Retry(), 0.5)
    assert decision.error == error[:ERROR_LIMIT]


@given(POLICIES, st.integers(1, 10_000), st.booleans())
def test_the_nearest_override_wins_and_the_rest_stands(policy: Retry, attempts: int, jitter: bool) -> None:
    merged = retry_policy(policy, RetryOverride(max_attempts=1, jitter=jitter), RetryOverride(max_attempts=attempts))
    assert (merged.max_attempts, merged.jitter) == (attempts, jitter)
    assert (merged.base_ms, merged.max_ms, merged.max_elapsed_ms) == (
        policy.base_ms,
        policy.max_ms,
        policy.max_elapsed_ms,
    )
