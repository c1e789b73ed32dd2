"""Admission: token buckets per tenant and per source's pen, and the cap on the pen's bytes (spec 02).

Charged after verification and before the commit, by whoever owns the log, so that a limit is exact however many
edges there are. Owns the buckets; never stores anything.
"""

from __future__ import annotations

from collections.abc import Mapping

from ankusa.core.bucket import Bucket, take
from schemas.append import Answer, AnswerStatus
from schemas.config import Quarantine, RateLimit, RateLimits
from schemas.records import Envelope, Held

IDLE_BUCKETS = 100_000
"""Buckets kept at most. Past it all are forgotten at once: each starts full again, which lets one burst through."""


class Admission:
    """Decides whether a submission may be committed. Override beats tenant, tenant beats default."""

    def __init__(self, limits: RateLimits, quarantine: Quarantine, overrides: Mapping[str, RateLimit]) -> None:
        self._limits = limits
        self._quarantine = quarantine
        self.overrides: dict[str, RateLimit] = dict(overrides)
        self._tenants: dict[str, Bucket] = {}
        self._pens: dict[str, Bucket] = {}

    def reconfigure(self, limits: RateLimits) -> None:
        """New configured limits; buckets keep their tokens, capped by the new burst at the next take."""
        self._limits = limits

    def override(self, changes: Mapping[str, RateLimit | None]) -> None:
        """Overrides set, or with None taken back."""
        for tenant_id, limit in changes.items():
            if limit is None:
                self.overrides.pop(tenant_id, None)
            else:
                self.overrides[tenant_id] = limit

    @property
    def default(self) -> RateLimit | None:
        return self._limits.default

    @property
    def configured(self) -> Mapping[str, RateLimit]:
        return self._limits.tenants

    def limit_of(self, tenant_id: str) -> tuple[RateLimit | None, str]:
        """A tenant's limit and where it comes from: override, config, default or none."""
        if tenant_id in self.overrides:
            return self.overrides[tenant_id], "override"
        if tenant_id in self._limits.tenants:
            return self._limits.tenants[tenant_id], "config"
        return self._limits.default, "default" if self._limits.default else "none"

    def admit(self, entry: Envelope | Held, size_bytes: int, pen_bytes: int, at: int) -> Answer | None:
        """The refusal, None when the submission may be stored. `pen_bytes` is what the pen holds already.

        A verified hook is charged to its tenant; a held or flagged one to its source's pen bucket, and a held one
        must fit the pen: a full pen refuses, it never evicts.
        """
        if isinstance(entry, Held):
            if pen_bytes + size_bytes > self._quarantine.max_bytes:
                return Answer(AnswerStatus.QUARANTINE_FULL, retry_after_ms=60_000)
            return self._charge_pen(entry.source_id, at)
        if entry.flagged:
            return self._charge_pen(entry.source_id, at) or self._charge_tenant(entry.tenant_id, at)
        return self._charge_tenant(entry.tenant_id, at)

    def _charge_pen(self, source_id: str, at: int) -> Answer | None:
        _bound(self._pens)
        bucket = self._pens.get(source_id)
        self._pens[source_id], wait_ms = take(bucket, self._quarantine.rate, self._quarantine.burst, at)
        return Answer(AnswerStatus.QUARANTINE_RATE_LIMITED, retry_after_ms=wait_ms) if wait_ms else None

    def _charge_tenant(self, tenant_id: str, at: int) -> Answer | None:
        limit, _ = self.limit_of(tenant_id)
        if limit is None:
            return None
        _bound(self._tenants)
        self._tenants[tenant_id], wait_ms = take(self._tenants.get(tenant_id), limit.rate, limit.burst, at)
        return Answer(AnswerStatus.RATE_LIMITED, retry_after_ms=wait_ms) if wait_ms else None


def _bound(buckets: dict[str, Bucket]) -> None:
    if len(buckets) >= IDLE_BUCKETS:
        buckets.clear()
