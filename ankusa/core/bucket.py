"""A token bucket as a value: rate limits, the pen's bucket and replay pacing are all this."""

from __future__ import annotations

from msgspec import Struct


class Bucket(Struct, frozen=True, gc=False):
    """`tokens` available at `at` (unix ms), which never goes back: a clock that does refills nothing twice."""

    tokens: float
    at: int


def refill(bucket: Bucket | None, rate: float, burst: float, at: int) -> Bucket:
    """The bucket at `at`; a new one is full. `rate` is tokens per second, `burst` the most it holds."""
    if bucket is None:
        return Bucket(burst, at)
    at = max(at, bucket.at)
    return Bucket(min(burst, bucket.tokens + (at - bucket.at) * rate / 1000), at)


def take(bucket: Bucket | None, rate: float, burst: float, at: int) -> tuple[Bucket, int]:
    """Take one token: `(bucket, 0)`, or `(bucket, wait_ms)` when there is none: `wait_ms` until there is one."""
    full = refill(bucket, rate, burst, at)
    if full.tokens >= 1:
        return Bucket(full.tokens - 1, full.at), 0
    return full, max(1, int((1 - full.tokens) * 1000 / rate) + 1)
