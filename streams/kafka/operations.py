"""The admin API's port on a worker: it answers for the partitions that it owns now.

Owns the joining of the parts; the work of each answer is that of the embedded host's modules, over all owned tables as
one. What is the fleet's (sources, overrides of rate limits) is as the topic `sources` has it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from importlib.metadata import version
from typing import Any, cast

from ankusa.core import job as jobs
from ankusa.metrics import Figures, FoldFigures, LaneFigures, Metrics
from ankusa.operations import BadCursor, Identity, Tenants
from ankusa.redact import redact
from ankusa.replay.answers import StoreUnavailable
from ankusa.replay.operator import Operator
from ankusa.source_store.store import SourceStore
from ankusa.store.errors import StoreError
from ankusa.store.tables import Tables
from schemas import records
from schemas.api import DeadLetters, HeldHooks, Hook, Job, LaneList, Limits, Purged, Stats, TenantLimit
from schemas.api_requests import DeadLetterQuery, HeldQuery, LaneQuery, PurgeQuery, StatsQuery
from schemas.records import Purge, Topic
from streams.kafka.changelog import PACKED
from streams.kafka.fleet_log import FleetLog
from streams.kafka.folding import PartitionFold
from streams.kafka.reading import FleetTables
from streams.kafka.services import Services
from streams.local.operations import figures, hook_view, lanes, limits, pen
from streams.local.operations.dead_letters import Listing


class KafkaOperations:
    """Implements `ankusa.operations.Operations`."""

    def __init__(self, services: Services) -> None:
        node = services.config.node
        self.identity = Identity(node.instance, version("ankusa-server"), node.roles)
        self.replays: Operator = services.replays
        self._services = services
        self._gated = figures.Gated()
        self._metrics = Metrics()

    @property
    def sources(self) -> SourceStore:
        """Raises StoreError until the topic of sources is read."""
        if self._services.source_store is None:
            raise StoreError("the topic of sources is not read yet")
        return self._services.source_store

    def not_ready(self) -> dict[str, str]:
        if not self._services.fleet.partitions:
            return {"partitions": "none is owned yet"}
        refused = self._services.host.unavailable
        return {} if refused is None else {"log": refused}

    def config(self) -> dict[str, Any]:
        return redact(self._services.config)

    async def metrics(self) -> bytes:
        return await asyncio.to_thread(self._metrics.render, self._figures())

    def _tables(self) -> Tables:
        """All owned tables as one, for modules that know but one store. Raises StoreError while nothing is owned."""
        if not self._services.fleet.partitions:
            raise StoreError("this node owns no partition now")
        return cast(Tables, FleetTables(self._services.fleet))

    # -- hooks ----------------------------------------------------------------

    async def stats(self, query: StatsQuery, tenants: Tenants) -> Stats | BadCursor:
        services = self._services
        kept = services.replays.list(tenants)
        if isinstance(kept, StoreUnavailable):
            raise StoreError(kept.reason)
        unfinished = [Job.model_validate(services.replays.to_json(job)) for job in kept if job.state in jobs.UNFINISHED]
        return figures.stats(self._tables(), services.dispatcher, unfinished, query, tenants, services.fleet.now())

    async def lanes(self, query: LaneQuery, tenants: Tenants) -> LaneList | BadCursor:
        return await lanes.Listing(self._tables, self._claimed, query, tenants).page(self._services.fleet.now())

    async def dead_letters(self, query: DeadLetterQuery, tenants: Tenants) -> DeadLetters | BadCursor:
        return await Listing(self._tables, query, tenants).page()

    def hook(self, hook_id: str, *, body: bool, tenants: Tenants) -> Hook | None:
        return hook_view.view(
            self._tables(), hook_id, body=body, tenants=tenants, claimed=self._claimed, tenant_of=self._tenant_of
        )

    def _claimed(self, seq: int, sink: int) -> bool:
        return (seq, sink) in self._services.dispatcher.claims.by_place

    def _tenant_of(self, source_id: str) -> str | None:
        source = self._services.sources.resolve(source_id)
        return None if source is None else source.source.tenant

    # -- the pen --------------------------------------------------------------

    async def held(self, query: HeldQuery, tenants: Tenants) -> HeldHooks | BadCursor:
        return await pen.listing(self._tables, query, tenants)

    async def purge(self, query: PurgeQuery, tenants: Tenants) -> Purged:
        """Partition by partition, oldest first in each."""
        deleted = freed_bytes = 0
        for number in sorted(self._services.fleet.partitions):
            left = query.model_copy(update={"limit": query.limit - deleted})
            part = _Pen(self._services.fleet, number)
            purged = await pen.purge(part.tables, part, left, tenants)
            deleted, freed_bytes = deleted + purged.deleted, freed_bytes + purged.bytes
        return Purged(deleted=deleted, bytes=freed_bytes)

    # -- rate limits ----------------------------------------------------------

    def limits(self, tenants: Tenants) -> Limits:
        return limits.listing(self._services.limits.admission, tenants)

    def limit(self, tenant_id: str) -> TenantLimit:
        return limits.one(self._services.limits.admission, tenant_id)

    async def set_limit(self, tenant_id: str, rate: float, burst: int) -> TenantLimit:
        await self._services.limits.set(tenant_id, rate, burst)
        return self.limit(tenant_id)

    async def drop_limit(self, tenant_id: str) -> bool:
        return await self._services.limits.drop(tenant_id)

    # -- metrics --------------------------------------------------------------

    def _figures(self) -> Figures:
        services = self._services
        dispatcher, tables = services.dispatcher, FleetTables(services.fleet)
        entries, pen_bytes = tables.pen_size()
        pressure = dispatcher.pressure()
        kept = services.replays.list()
        partitions = services.fleet.partitions.values()
        return Figures(
            instance=self.identity.instance,
            version=self.identity.version,
            store_up=services.host.unavailable is None,
            store_bytes=tables.database.size_bytes(),
            store_recoveries=0,
            next_offset=sum(partition.turn for partition in partitions),
            reclaimed=services.reclaiming.counts() | services.trimming.counts() | self._expired(),
            pen_entries=entries,
            pen_bytes=pen_bytes,
            answered={},
            sinks=figures.sink_figures(cast(Tables, tables).counts, dispatcher),
            lag_ms=None if pressure is None else pressure.lag_ms,
            window=figures.window(dispatcher),
            attempts=figures.attempts(dispatcher),
            outcomes=figures.outcomes(dispatcher),
            lanes=self._lane_figures(tables),
            open_breakers=len(dispatcher.breakers.open()),
            replays=None if isinstance(kept, StoreUnavailable) else figures.jobs_by_state(kept),
            gated=dict(self._gated.total) if isinstance(kept, StoreUnavailable) else self._gated.count(kept),
            claim_check=figures.claim_check(dispatcher),
            fold=fold_figures(services.owned.folds.values(), self._passed_over()),
        )

    def _expired(self) -> dict[str, int]:
        """What the folds of the owned partitions let go of."""
        folds = self._services.owned.folds.values()
        return {family: sum(fold.figures.gone.get(family, 0) for fold in folds) for family in PACKED}

    def _passed_over(self) -> int:
        """Records of the topics that are followed and not folded, which could not be read."""
        services = self._services
        followed = 0 if services.feed is None else services.feed.passed.count
        return followed + services.source_rows.set_aside + services.dead_reader.passed.count

    def _lane_figures(self, tables: FleetTables) -> LaneFigures:
        healed, since, longest = self._services.healing.figures()
        oldest_ms = None if since is None else max(0, self._services.fleet.now() - since)
        return LaneFigures(*tables.lane_counts(), healed, longest, oldest_ms)


def fold_figures(folds: Collection[PartitionFold], passed_over: int = 0) -> FoldFigures:
    """What a worker tells of the partitions it owns, and of what it has `passed_over` elsewhere."""
    return FoldFigures(
        partitions=len(folds),
        records=sum(fold.figures.records for fold in folds),
        rows=sum(fold.figures.rows for fold in folds),
        skipped=sum(fold.figures.skipped for fold in folds),
        set_aside=sum(fold.set_asides.count for fold in folds) + passed_over,
        refused_pages=sum(fold.figures.refused_pages for fold in folds),
        waiting=sum(fold.unsent_records for fold in folds),
    )


class _Pen:
    """One partition's pen, as a purge asks for it."""

    def __init__(self, fleet: FleetLog, number: int) -> None:
        self._fleet = fleet
        self._number = number

    def tables(self) -> Tables:
        tables = self._fleet.tables(self._number)
        if tables is None:
            raise StoreError(f"partition {self._number} is not this node's any more")
        return tables

    def now(self) -> int:
        return self._fleet.now()

    async def purge(self, record: Purge) -> None:
        await self._fleet.append(Topic.QUARANTINE, self._number, records.encode(record))
