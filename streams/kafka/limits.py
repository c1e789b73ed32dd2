"""Overrides of rate limits in a fleet: records of the compacted topic `sources`, which every edge and worker follows.

Owns their keys and bytes, and what a worker shows and writes of them. An override is `limit/<tenant>`, which no source
is called: a source's id has no slash. The later of two that are set at once stands. Counts no hook: edges do.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from ankusa.admission import Admission
from schemas import records
from schemas.config import Config, RateLimit
from schemas.records import LimitChange, Topic
from streams.kafka.fleet_log import ANSWER_S, FleetLog

PREFIX = "limit/"

ONLY = 0
"""The topic has one partition."""


def tenant_of(key: str) -> str | None:
    """The tenant whose override a key is of, None when it is of something else."""
    return key.removeprefix(PREFIX) if key.startswith(PREFIX) else None


def read_limit(value: bytes | None) -> RateLimit | None:
    """The override that a record sets; None when it takes one back. Raises one of `records.DecodeError`, and ValueError
    for one that no bucket can go by."""
    change = None if value is None else records.decode_limit_change(value)
    if change is None or change.rate is None or change.burst is None:
        return None
    if not (0 < change.rate < math.inf and change.burst >= 1):
        raise ValueError(f"a limit of {change.rate} per second and a burst of {change.burst}")
    return RateLimit(rate=change.rate, burst=change.burst)


class FleetLimits:
    """The limits as one worker knows them. `admission` says which of a tenant's holds, and admits nothing."""

    def __init__(self, config: Config, fleet: FleetLog) -> None:
        self._fleet = fleet
        self.admission = Admission(config.rate_limits, config.quarantine, {})

    def reload(self, config: Config) -> None:
        self.admission.reconfigure(config.rate_limits)

    def take(self, changes: Mapping[str, RateLimit | None]) -> None:
        """Go by what the topic says, here or by another worker's hand."""
        self.admission.override(changes)

    async def set(self, tenant_id: str, rate: float, burst: int) -> None:
        """Returns when every in-sync copy has it. Raises StoreError, within `ANSWER_S`; then it may come to hold all
        the same, as the topic says."""
        change = LimitChange(tenant_id, self._fleet.now(), rate, burst)
        await self._write(tenant_id, records.encode(change))
        self.take({tenant_id: RateLimit(rate=rate, burst=burst)})

    async def drop(self, tenant_id: str) -> bool:
        """False when there is no override. Raises StoreError."""
        if tenant_id not in self.admission.overrides:
            return False
        await self._write(tenant_id, None)
        self.take({tenant_id: None})
        return True

    async def _write(self, tenant_id: str, value: bytes | None) -> None:
        await self._fleet.deliver(Topic.SOURCES, ONLY, value, f"{PREFIX}{tenant_id}".encode(), ANSWER_S)
