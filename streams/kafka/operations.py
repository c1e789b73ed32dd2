"""The admin API's port on a worker: it answers for the partitions that it owns now.

Owns the joining of the parts; what every host answers alike is `streams/operations`, over all owned tables as one. What
is the fleet's (sources, overrides of rate limits) is as the topic `sources` has it.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, cast

from ankusa.admission import Admission
from ankusa.dispatch.dispatcher import Dispatcher
from ankusa.metrics import Figures, FoldFigures, LaneFigures
from ankusa.operations import Tenants
from ankusa.redact import redact
from ankusa.replay.answers import StoreUnavailable
from ankusa.replay.operator import Operator
from ankusa.source_store.store import SourceStore
from ankusa.store.errors import StoreError
from ankusa.store.tables import Tables
from schemas import records
from schemas.api import Purged, TenantLimit
from schemas.api_requests import PurgeQuery
from schemas.records import Purge, Topic
from streams.kafka.changelog import PACKED
from streams.kafka.fleet_log import ANSWER_S, FleetLog
from streams.kafka.folding import PartitionFold
from streams.kafka.reading import FleetTables
from streams.kafka.services import Services
from streams.operations import figures, pen
from streams.operations.node import NodeOperations


class KafkaOperations(NodeOperations):
    """Implements `ankusa.operations.Operations`."""

    def __init__(self, services: Services) -> None:
        super().__init__(services.config.node)
        self._services = services

    @property
    def replays(self) -> Operator:
        return self._services.replays

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

    def _tables(self) -> Tables:
        """All owned tables as one, for modules that know but one store. Raises StoreError while nothing is owned."""
        if not self._services.fleet.partitions:
            raise StoreError("this node owns no partition now")
        return cast(Tables, FleetTables(self._services.fleet))

    @property
    def _dispatcher(self) -> Dispatcher:
        return self._services.dispatcher

    @property
    def _admission(self) -> Admission:
        return self._services.limits.admission

    def _now(self) -> int:
        return self._services.fleet.now()

    def _tenant_of(self, source_id: str) -> str | None:
        source = self._services.sources.resolve(source_id)
        return None if source is None else source.source.tenant

    # -- the pen --------------------------------------------------------------

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
            reclaimed=self._reclaimed(),
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

    def _reclaimed(self) -> dict[str, int]:
        """What the sweeps, and the folds of the owned partitions, let go of."""
        services = self._services
        swept = services.reclaiming.counts() | services.trimming.counts() | services.spent_commands.counts()
        folds = services.owned.folds.values()
        return swept | {family: sum(fold.figures.gone.get(family, 0) for fold in folds) for family in PACKED}

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
        await self._fleet.append(Topic.QUARANTINE, self._number, records.encode(record), within_s=ANSWER_S)
