"""The embedded implementation of the admin API's port: one local log and the parts around it.

Owns the joining of the parts and the refusal while the store is away; the work of each answer is in the modules beside.
All methods run on the event loop's thread.
"""

from __future__ import annotations

import asyncio
from importlib.metadata import version
from typing import Any, Protocol

from ankusa.admission import Admission
from ankusa.core import job as jobs
from ankusa.dispatch.dispatcher import Dispatcher
from ankusa.metrics import Figures, Metrics
from ankusa.operations import BadCursor, Identity, Tenants
from ankusa.redact import redact
from ankusa.replay.answers import StoreUnavailable
from ankusa.replay.operator import Operator
from ankusa.source_store.store import SourceStore
from ankusa.store.errors import StoreError
from ankusa.store.tables import Tables
from schemas.api import DeadLetters, HeldHooks, Hook, Job, LaneList, Limits, Purged, Stats, TenantLimit
from schemas.api_requests import DeadLetterQuery, HeldQuery, LaneQuery, PurgeQuery, StatsQuery
from schemas.config import Config, RateLimit
from schemas.records import LimitChange
from streams.local.health import Health
from streams.local.intake import Intake
from streams.local.log import LocalLog
from streams.local.operations import figures, hook_view, lanes, limits, pen
from streams.local.operations.dead_letters import Listing
from streams.local.sweeper import Sweeper


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


class LocalOperations:
    """Implements `ankusa.operations.Operations`."""

    def __init__(self, engine: Engine) -> None:
        node = engine.config.node
        self.identity = Identity(node.instance, version("ankusa-server"), node.roles)
        self._engine = engine
        self._gated = figures.Gated()
        self._metrics = Metrics()

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

    async def metrics(self) -> bytes:
        return await asyncio.to_thread(self._metrics.render, self._figures())  # the text is long; the reading is not

    def _tables(self) -> Tables:
        """The tables as they are now. Raises StoreError while they are closed, as between a recovery that failed and
        the next one: counts in memory would still answer, and an empty list must not mean that."""
        log = self._engine.log
        if not log.tables.database.handles:
            raise StoreError(log.unavailable or f"{log.path} is closed")
        return log.tables

    # -- hooks ----------------------------------------------------------------

    async def stats(self, query: StatsQuery, tenants: Tenants) -> Stats | BadCursor:
        engine = self._engine
        kept = engine.replays.list(tenants)
        if isinstance(kept, StoreUnavailable):
            raise StoreError(kept.reason)
        unfinished = [Job.model_validate(engine.replays.to_json(job)) for job in kept if job.state in jobs.UNFINISHED]
        return figures.stats(self._tables(), engine.dispatcher, unfinished, query, tenants, engine.log.now())

    async def lanes(self, query: LaneQuery, tenants: Tenants) -> LaneList | BadCursor:
        return await lanes.Listing(self._tables, self._claimed, query, tenants).page(self._engine.log.now())

    async def dead_letters(self, query: DeadLetterQuery, tenants: Tenants) -> DeadLetters | BadCursor:
        return await Listing(self._tables, query, tenants).page()

    def hook(self, hook_id: str, *, body: bool, tenants: Tenants) -> Hook | None:
        return hook_view.view(
            self._tables(), hook_id, body=body, tenants=tenants, claimed=self._claimed, tenant_of=self._tenant_of
        )

    def _claimed(self, seq: int, sink: int) -> bool:
        return (seq, sink) in self._engine.dispatcher.claims.by_place

    def _tenant_of(self, source_id: str) -> str | None:
        source = self._engine.config.sources.get(source_id) or self._engine.source_store.source(source_id)
        return None if source is None else source.tenant

    # -- the pen --------------------------------------------------------------

    async def held(self, query: HeldQuery, tenants: Tenants) -> HeldHooks | BadCursor:
        return await pen.listing(self._tables, query, tenants)

    async def purge(self, query: PurgeQuery, tenants: Tenants) -> Purged:
        return await pen.purge(self._tables, self._engine.log, query, tenants)

    # -- rate limits ----------------------------------------------------------

    def limits(self, tenants: Tenants) -> Limits:
        return limits.listing(self._engine.admission, tenants)

    def limit(self, tenant_id: str) -> TenantLimit:
        return limits.one(self._engine.admission, tenant_id)

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
            lanes=figures.lanes(log.tables, engine.sweeper.lane_sweep, log.now()),
            open_breakers=len(dispatcher.breakers.open()),
            replays=None if isinstance(kept, StoreUnavailable) else figures.jobs_by_state(kept),
            gated=dict(self._gated.total) if isinstance(kept, StoreUnavailable) else self._gated.count(kept),
            claim_check=figures.claim_check(dispatcher),
        )
