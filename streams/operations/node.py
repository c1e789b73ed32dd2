"""What the admin API asks of a node, as far as every host answers it alike: of its tables, dispatcher and limits.

Owns the joining of the parts; the work of each answer is in the modules beside. All methods run on the event loop's
thread.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from importlib.metadata import version

from ankusa.admission import Admission
from ankusa.core import job as jobs
from ankusa.dispatch.dispatcher import Dispatcher
from ankusa.metrics import Figures, Metrics
from ankusa.operations import BadCursor, Identity, Tenants
from ankusa.replay.answers import StoreUnavailable
from ankusa.replay.operator import Operator
from ankusa.store.errors import StoreError
from ankusa.store.tables import Tables
from schemas.api import DeadLetters, HeldHooks, Hook, Job, LaneList, Limits, Stats, TenantLimit
from schemas.api_requests import DeadLetterQuery, HeldQuery, LaneQuery, StatsQuery
from schemas.config import Node
from streams.operations import figures, hook_view, lanes, limits, pen
from streams.operations.dead_letters import Listing


class NodeOperations(ABC):
    """The host's share of `ankusa.operations.Operations` is left to it."""

    def __init__(self, node: Node) -> None:
        self.identity = Identity(node.instance, version("ankusa-server"), node.roles)
        self._gated = figures.Gated()
        self._metrics = Metrics()

    # -- what a host has ------------------------------------------------------

    @property
    @abstractmethod
    def replays(self) -> Operator: ...

    @property
    @abstractmethod
    def _dispatcher(self) -> Dispatcher: ...

    @property
    @abstractmethod
    def _admission(self) -> Admission: ...

    @abstractmethod
    def _now(self) -> int:
        """Log time, unix ms."""

    @abstractmethod
    def _tables(self) -> Tables:
        """The tables as they are now. Raises StoreError while there are none: an empty list must not mean that."""

    @abstractmethod
    def _tenant_of(self, source_id: str) -> str | None:
        """The tenant of a source, None where it is not known or has none."""

    @abstractmethod
    def _figures(self) -> Figures: ...

    # -- hooks ----------------------------------------------------------------

    async def stats(self, query: StatsQuery, tenants: Tenants) -> Stats | BadCursor:
        kept = self.replays.list(tenants)
        if isinstance(kept, StoreUnavailable):
            raise StoreError(kept.reason)
        unfinished = [Job.model_validate(self.replays.to_json(job)) for job in kept if job.state in jobs.UNFINISHED]
        return figures.stats(self._tables(), self._dispatcher, unfinished, query, tenants, self._now())

    async def lanes(self, query: LaneQuery, tenants: Tenants) -> LaneList | BadCursor:
        return await lanes.Listing(self._tables, self._claimed, query, tenants).page(self._now())

    async def dead_letters(self, query: DeadLetterQuery, tenants: Tenants) -> DeadLetters | BadCursor:
        return await Listing(self._tables, query, tenants).page()

    def hook(self, hook_id: str, *, body: bool, tenants: Tenants) -> Hook | None:
        return hook_view.view(
            self._tables(), hook_id, body=body, tenants=tenants, claimed=self._claimed, tenant_of=self._tenant_of
        )

    def _claimed(self, seq: int, sink: int) -> bool:
        return (seq, sink) in self._dispatcher.claims.by_place

    async def held(self, query: HeldQuery, tenants: Tenants) -> HeldHooks | BadCursor:
        return await pen.listing(self._tables, query, tenants)

    # -- rate limits ----------------------------------------------------------

    def limits(self, tenants: Tenants) -> Limits:
        return limits.listing(self._admission, tenants)

    def limit(self, tenant_id: str) -> TenantLimit:
        return limits.one(self._admission, tenant_id)

    # -- metrics --------------------------------------------------------------

    async def metrics(self) -> bytes:
        return await asyncio.to_thread(self._metrics.render, self._figures())  # the text is long; the reading is not
