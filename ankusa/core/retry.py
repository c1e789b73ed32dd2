"""The retry decision: what an attempt's result does to its row (spec 03 "Failure").

Decides, never schedules: the answer is an outcome value. The draw for the jitter comes in.
"""

from __future__ import annotations

from msgspec import Struct

from schemas.config import Retry
from schemas.records import ErrorClass, OutcomeKind, Row

RETRY_AFTER_CAP_MS = 3_600_000
"""The longest a destination's Retry-After is honoured: an hour. A larger one would let a sink hold rows for ever."""

ERROR_LIMIT = 500
"""Characters of an error kept with a row: enough to act on, bounded so that a hostile sink cannot grow the store."""


class Decision(Struct, frozen=True, gc=False):
    """What follows an attempt. `due_at` (unix ms) is set for RETRY."""

    kind: OutcomeKind
    due_at: int = 0
    error: str | None = None
    error_class: ErrorClass | None = None


def backoff_ms(policy: Retry, attempt: int, draw: float) -> int:
    """Delay after attempt number `attempt` (from 1): `base_ms` doubled each time to `max_ms`, times the jitter factor.

    The factor is in [0.5, 1.0]. `draw` is uniform in [0, 1). At least 1 ms.
    """
    doublings = min(attempt - 1, 62)
    delay = min(policy.base_ms << doublings, policy.max_ms)
    return max(1, int(delay * (0.5 + draw / 2))) if policy.jitter else delay


def delivered() -> Decision:
    return Decision(OutcomeKind.DELIVERED)


def after_failure(
    row: Row,
    started_at: int,
    at: int,
    error: str,
    error_class: ErrorClass,
    retry_after_ms: int,
    policy: Retry,
    draw: float,
) -> Decision:
    """The decision after a failed attempt that ran from `started_at` to `at` (unix ms).

    Permanent is dead at once. Dead too when the attempt was the policy's last, or when the next one could
    not start within `max_elapsed_ms` of the first.
    """
    error = error[:ERROR_LIMIT]
    attempt = row.attempts + 1
    if error_class is ErrorClass.PERMANENT or attempt >= policy.max_attempts:
        return Decision(OutcomeKind.DEAD, error=error, error_class=error_class)
    delay = backoff_ms(policy, attempt, draw)
    if error_class is ErrorClass.RETRY_AFTER:
        delay = max(delay, min(retry_after_ms, RETRY_AFTER_CAP_MS))
    horizon = (row.first_at if row.attempts else started_at) + policy.max_elapsed_ms
    if at + delay > horizon:
        return Decision(OutcomeKind.DEAD, error=error, error_class=error_class)
    return Decision(OutcomeKind.RETRY, at + delay, error, error_class)


def parked(row: Row, due_at: int, at: int, policy: Retry) -> Decision:
    """The decision for a row whose breaker is open until `due_at`: attempts unchanged, never past its horizon.

    A row that is parked again at or past its horizon dies there (`retry_horizon`).
    """
    horizon = (row.first_at or at) + policy.max_elapsed_ms
    if row.first_at and at >= horizon:
        return Decision(OutcomeKind.DEAD, error="retry_horizon", error_class=row.error_class or ErrorClass.TRANSIENT)
    return Decision(OutcomeKind.PARKED, min(due_at, horizon))
