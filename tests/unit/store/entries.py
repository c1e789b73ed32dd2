"""Hooks and held hooks for tests of the local log."""

from __future__ import annotations

import msgspec

from schemas import records
from schemas.records import Envelope, Held

AT = 1_700_000_000_000


def hook(
    hook_id: str,
    *,
    tenant: str = "acme",
    source: str = "orders",
    dedupe: str | None = None,
    body: bytes = b"{}",
    sinks: int = 1,
    lane: str | None = None,
) -> tuple[Envelope, bytes, bytes]:
    """A hook as `LocalLog.commit` takes it. A dedupe key lives for a minute; `lane` is every sink's ordering key."""
    ttl_ms = 60_000 if dedupe else 0
    envelope = Envelope(hook_id, source, tenant, AT, ("http",) * sinks, (), None, hook_id, dedupe, ttl_ms)
    if lane is not None:
        envelope = msgspec.structs.replace(envelope, ordering_keys=(lane,) * sinks)
    return envelope, records.encode(envelope), body


def held(hook_id: str, *, at: int = AT, body: bytes = b"{}") -> tuple[Held, bytes, bytes]:
    """A hook for the pen."""
    entry = Held(hook_id, "orders", "acme", at, "POST", "/webhooks/orders", (), "signature", len(body))
    return entry, records.encode(entry), body
