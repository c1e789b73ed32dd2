"""The embedded implementation of the admin API's port: one local log and the parts around it.

Owns the joining of the parts and the refusal while the store is away; what every host answers alike is
`streams/operations`.
All methods run on the event loop's thread.
"""

from __future__ import annotations

from typing import Any, Protocol

from ankusa.admission import Admission
from ankusa.dispatch.dispatcher import Dispatcher
from ankusa.metrics import Figures, LaneFigures
from ankusa.operations import Tenants
from ankusa.redact import redact
from ankusa.replay.answers import StoreUnavailable
from ankusa.replay.operator import Operator
from ankusa.source_store.store import SourceStore
from ankusa.store.errors import StoreError
from ankusa.store.tables import Tables
from schemas.api import Purged, TenantLimit
from schemas.api_requests import PurgeQuery
from schemas.config import Config, RateLimit
from schemas.records import LimitChange
from streams.local.health import Health
from streams.local.intake import Intake
from streams.local.lane_sweep import LaneSweep
from streams.local.log import LocalLog
from streams.local.sweeper import Sweeper
from streams.operations import figures, pen
from streams.operations.node import NodeOperations


class Engine(Protocol):
    """What the admin API needs of an engine. `config` is replaced by a reload, `log.tables` by a recovery: neither is
    kept here."""

    @property
    def config(self) -> Config: ...
    @property
    def log(self) -> LocalLog: ...
    @property
    def health(self) -> Health: ...
    @property
    def intake(self) -> Intake: ...
    @property
    def admission(self) -> Admission: ...
    @property
    def dispatcher(self) -> Dispatcher: ...
    @property
    def sweeper(self) -> Sweeper: ...
    @property
    def replays(self) -> Operator: ...
    @property
    def source_store(self) -> SourceStore: ...


class LocalOperations(NodeOperations):
    """Implements `ankusa.operations.Operations`."""

    def __init__(self, engine: Engine) -> None:
        super().__init__(engine.config.node)
        self._engine = engine

    @property
    def replays(self) -> Operator:
        return self._engine.replays

    @property
    def sources(self) -> SourceStore:
        return self._engine.source_store

    def not_ready(self) -> dict[str, str]:
        refusing = self._engine.log.refusing
        return {} if refusing is None else {"store": refusing}

    def config(self) -> dict[str, Any]:
        return redact(self._engine.config)

    def _tables(self) -> Tables:
        """The tables as they are now. Raises StoreError while they are closed, as between a recovery that failed and
        the next one: counts in memory would still answer, and an empty list must not mean that."""
        log = self._engine.log
        if not log.tables.database.handles:
            raise StoreError(log.unavailable or f"{log.path} is closed")
        return log.tables

    @property
    def _dispatcher(self) -> Dispatcher:
        return self._engine.dispatcher

    @property
    def _admission(self) -> Admission:
        return self._engine.admission

    def _now(self) -> int:
        return self._engine.log.now()

    def _tenant_of(self, source_id: str) -> str | None:
        source = self._engine.config.sources.get(source_id) or self._engine.source_store.source(source_id)
        return None if source is None else source.tenant

    # -- the pen --------------------------------------------------------------

    async def purge(self, query: PurgeQuery, tenants: Tenants) -> Purged:
        return await pen.purge(self._tables, self._engine.log, query, tenants)

    # -- rate limits ----------------------------------------------------------

    async def set_limit(self, tenant_id: str, rate: float, burst: int) -> TenantLimit:
        log = self._engine.log
        await log.limit(LimitChange(tenant_id, log.now(), rate, burst))
        self._engine.admission.overrides[tenant_id] = RateLimit(rate=rate, burst=burst)
        return self.limit(tenant_id)

    async def drop_limit(self, tenant_id: str) -> bool:
        if tenant_id not in self._engine.admission.overrides:
            return False
        log = self._engine.log
        await log.limit(LimitChange(tenant_id, log.now(), None, None))
        self._engine.admission.overrides.pop(tenant_id, None)
        return True

    # -- metrics --------------------------------------------------------------

    def _figures(self) -> Figures:
        engine = self._engine
        log, dispatcher = engine.log, engine.dispatcher
        pen_entries, pen_bytes = log.tables.pen_size()
        pressure = dispatcher.pressure()
        kept = engine.replays.list()
        return Figures(
            instance=self.identity.instance,
            version=self.identity.version,
            store_up=log.refusing is None,
            store_bytes=log.tables.database.size_bytes(),
            store_recoveries=engine.health.recoveries,
            next_offset=log.next_offset,
            reclaimed=dict(engine.sweeper.counts),
            pen_entries=pen_entries,
            pen_bytes=pen_bytes,
            answered={status.name.lower(): count for status, count in engine.intake.answered.items()},
            sinks=figures.sink_figures(log.tables.counts, dispatcher),
            lag_ms=None if pressure is None else pressure.lag_ms,
            window=figures.window(dispatcher),
            attempts=figures.attempts(dispatcher),
            outcomes=figures.outcomes(dispatcher),
            lanes=_lane_figures(log.tables, engine.sweeper.lane_sweep, log.now()),
            open_breakers=len(dispatcher.breakers.open()),
            replays=None if isinstance(kept, StoreUnavailable) else figures.jobs_by_state(kept),
            gated=dict(self._gated.total) if isinstance(kept, StoreUnavailable) else self._gated.count(kept),
            claim_check=figures.claim_check(dispatcher),
        )


def _lane_figures(tables: Tables, sweep: LaneSweep, at: int) -> LaneFigures:
    """From counts, and from what the last sweep saw."""
    lanes, members = tables.lane_counts()
    if not members:
        return LaneFigures(lanes, members, sweep.healed, min(lanes, 1), None)
    oldest_head_ms = None if sweep.oldest_since is None else max(0, at - sweep.oldest_since)
    return LaneFigures(lanes, members, sweep.healed, sweep.longest, oldest_head_ms)
