"""The token bucket: never above its burst, never below nothing, never faster than its rate, whatever the clock does."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ankusa.core.bucket import Bucket, refill, take

RATES = st.floats(0.01, 100_000)
BURSTS = st.integers(1, 10_000)
STEPS = st.lists(st.integers(-5_000, 5_000), max_size=100)


@given(RATES, BURSTS, STEPS)
def test_no_more_are_let_through_than_burst_and_rate_allow(rate: float, burst: int, steps: list[int]) -> None:
    at = latest = 1_000_000
    bucket, wait_ms = take(None, rate, burst, at)
    taken = 1
    for step in steps:
        at += step
        latest = max(latest, at)
        bucket, wait_ms = take(bucket, rate, burst, at)
        taken += wait_ms == 0
        assert 0 <= bucket.tokens <= burst
        assert wait_ms >= 0
    assert taken <= burst + (latest - 1_000_000) * rate / 1000 + 1e-6


@given(RATES, BURSTS, st.integers(0, 10_000_000))
def test_after_the_wait_there_is_a_token(rate: float, burst: int, at: int) -> None:
    bucket = Bucket(0.0, at)
    bucket, wait_ms = take(bucket, rate, burst, at)
    assert wait_ms > 0
    bucket, again_ms = take(bucket, rate, burst, at + wait_ms)
    assert again_ms == 0


@given(RATES, BURSTS, st.integers(1, 10_000))
def test_a_clock_that_steps_back_and_forth_refills_nothing_twice(rate: float, burst: int, back_ms: int) -> None:
    at = 1_000_000
    bucket = Bucket(0.0, at)
    for _ in range(20):
        bucket = refill(bucket, rate, burst, at - back_ms)
        bucket = refill(bucket, rate, burst, at)
    assert bucket == Bucket(0.0, at)


def test_a_new_bucket_is_full_and_a_lowered_burst_counts_at_once() -> None:
    bucket, wait_ms = take(None, 1, 10, 0)
    assert (bucket, wait_ms) == (Bucket(9, 0), 0)
    bucket, _ = take(bucket, 1, 3, 0)
    assert bucket.tokens == 2
