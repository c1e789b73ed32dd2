"""Admission: who is charged for what, in which order limits apply, and that a full pen refuses."""

from __future__ import annotations

import msgspec
import pytest

from ankusa import admission as admitting
from ankusa.admission import Admission
from schemas.append import AnswerStatus
from schemas.config import Quarantine, RateLimit, RateLimits
from schemas.records import Envelope, Held

AT = 1_700_000_000_000
ONE = RateLimit(rate=1, burst=1)


def envelope(tenant: str = "acme", *, source: str = "orders", flagged: bool = False) -> Envelope:
    return Envelope("id", source, tenant, AT, ("http",), (), None, "id", flagged=flagged)


def held(source: str = "orders") -> Held:
    return Held("id", source, "acme", AT, "POST", "/", (), "signature", 2)


def admission(
    limits: RateLimits | None = None, quarantine: Quarantine | None = None, **overrides: RateLimit
) -> Admission:
    return Admission(limits or RateLimits(), quarantine or Quarantine(), overrides)


def status(
    admitted: Admission, entry: Envelope | Held, at: int = AT, size_bytes: int = 10, pen_bytes: int = 0
) -> object:
    refusal = admitted.admit(entry, size_bytes, pen_bytes, at)
    return None if refusal is None else refusal.status


def test_without_a_limit_everything_is_admitted() -> None:
    admitted = admission()
    assert {status(admitted, envelope()) for _ in range(1000)} == {None}
    assert admitted.limit_of("acme") == (None, "none")


def test_a_tenant_past_its_limit_is_refused_with_the_wait_and_others_are_not() -> None:
    admitted = admission(RateLimits(default=RateLimit(rate=2, burst=3)))
    assert [status(admitted, envelope()) for _ in range(4)] == [None, None, None, AnswerStatus.RATE_LIMITED]
    refusal = admitted.admit(envelope(), 10, 0, AT)
    assert refusal is not None
    assert 1 <= refusal.retry_after_ms <= 501
    assert status(admitted, envelope("other")) is None
    assert status(admitted, envelope(), AT + refusal.retry_after_ms) is None


def test_an_override_beats_the_tenants_limit_and_that_the_default() -> None:
    limits = RateLimits(default=ONE, tenants={"acme": RateLimit(rate=1, burst=2)})
    admitted = admission(limits)
    assert admitted.limit_of("acme") == (limits.tenants["acme"], "config")
    assert admitted.limit_of("other") == (ONE, "default")
    admitted.overrides["acme"] = RateLimit(rate=1, burst=3)
    assert admitted.limit_of("acme") == (RateLimit(rate=1, burst=3), "override")
    assert [status(admitted, envelope()) for _ in range(4)] == [None, None, None, AnswerStatus.RATE_LIMITED]


def test_a_new_config_counts_at_once_and_keeps_what_was_spent() -> None:
    admitted = admission(RateLimits(default=RateLimit(rate=1, burst=10)))
    assert [status(admitted, envelope()) for _ in range(5)] == [None] * 5
    admitted.reconfigure(RateLimits(default=RateLimit(rate=1, burst=2)))
    assert [status(admitted, envelope()) for _ in range(3)] == [None, None, AnswerStatus.RATE_LIMITED]
    admitted.reconfigure(RateLimits())
    assert status(admitted, envelope()) is None


def test_held_hooks_are_charged_to_their_sources_pen_and_not_to_the_tenant() -> None:
    admitted = admission(RateLimits(default=ONE), Quarantine(rate=1, burst=2))
    assert [status(admitted, held()) for _ in range(3)] == [None, None, AnswerStatus.QUARANTINE_RATE_LIMITED]
    assert status(admitted, held("other")) is None
    assert status(admitted, envelope()) is None


def test_flagged_hooks_are_charged_to_the_pen_and_the_tenant() -> None:
    admitted = admission(RateLimits(default=ONE), Quarantine(rate=1, burst=2))
    flagged = envelope(flagged=True)
    assert status(admitted, flagged) is None
    assert status(admitted, flagged) is AnswerStatus.RATE_LIMITED
    assert status(admitted, flagged) is AnswerStatus.QUARANTINE_RATE_LIMITED


def test_a_full_pen_refuses_and_costs_no_token() -> None:
    admitted = admission(quarantine=Quarantine(rate=1, burst=1, max_bytes=100))
    assert status(admitted, held(), size_bytes=60, pen_bytes=41) is AnswerStatus.QUARANTINE_FULL
    assert status(admitted, held(), size_bytes=60, pen_bytes=40) is None


def test_a_clock_that_jumps_an_hour_ahead_and_back_refuses_nobody_for_long() -> None:
    admitted = admission(RateLimits(default=RateLimit(rate=10, burst=5)))
    assert status(admitted, envelope(), AT) is None
    assert status(admitted, envelope(), AT + 3_600_000) is None
    assert [status(admitted, envelope(), AT) for _ in range(4)] == [None] * 4
    assert status(admitted, envelope(), AT) is AnswerStatus.RATE_LIMITED
    assert status(admitted, envelope(), AT + 3_600_000 + 100) is None


def test_buckets_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admitting, "IDLE_BUCKETS", 10)
    admitted = admission(RateLimits(default=RateLimit(rate=1, burst=5)))
    for number in range(100):
        assert status(admitted, envelope(f"tenant-{number}")) is None
        assert status(admitted, msgspec.structs.replace(held(), source_id=f"source-{number}")) is None
    assert len(admitted._tenants) <= 10
    assert len(admitted._pens) <= 10
