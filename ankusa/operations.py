"""The port between the admin API and a node: everything the API asks, and nothing of how a host answers it.

Values are the API's own models (`schemas/api.py`), so that what is documented is what is answered. A caller limited to
tenants is passed as `tenants`, a set of their ids; None sees everything. Every method may raise `StoreError` while the
store cannot answer. Owns no behaviour.
"""

from __future__ import annotations

from typing import Any, Protocol

from msgspec import Struct

from ankusa.replay.operator import Operator
from ankusa.source_store.store import SourceStore
from schemas.api import DeadLetters, HeldHooks, Hook, LaneList, Limits, Purged, Stats, TenantLimit
from schemas.api_requests import DeadLetterQuery, HeldQuery, LaneQuery, PurgeQuery, StatsQuery

Tenants = frozenset[str] | None


class Identity(Struct, frozen=True):
    """Who this node is: its instance name, the release, the roles it runs."""

    instance: str
    version: str
    roles: tuple[str, ...]


class BadCursor(Struct, frozen=True):
    """The cursor is not one that this listing gave out."""


class Operations(Protocol):
    """One node, as the admin API sees it."""

    @property
    def identity(self) -> Identity: ...

    @property
    def replays(self) -> Operator: ...

    @property
    def sources(self) -> SourceStore:
        """The sources that the API sets up."""

    def not_ready(self) -> dict[str, str]:
        """The reason by component; empty while the node is ready."""

    def config(self) -> dict[str, Any]:
        """The effective configuration, redacted."""

    async def metrics(self) -> bytes:
        """Prometheus text. Never scans a table."""

    async def stats(self, query: StatsQuery, tenants: Tenants) -> Stats | BadCursor:
        """Lag, window, rows by state, and a page of depths by sink key, from counts that are kept: never a scan."""

    async def lanes(self, query: LaneQuery, tenants: Tenants) -> LaneList | BadCursor:
        """A page of the lanes with rows, in order of their keys. The work of one call is bounded, as that of
        `dead_letters`; how many members a lane has adds nothing to it."""

    async def dead_letters(self, query: DeadLetterQuery, tenants: Tenants) -> DeadLetters | BadCursor:
        """A page of dead rows, newest death first. The work of one call is bounded: a page may be short, or empty,
        and still have a cursor."""

    def hook(self, hook_id: str, *, body: bool, tenants: Tenants) -> Hook | None:
        """A hook with its rows and history, None when there is none of that id for `tenants`."""

    async def held(self, query: HeldQuery, tenants: Tenants) -> HeldHooks | BadCursor:
        """A page of held hooks, newest first, without bodies."""

    async def purge(self, query: PurgeQuery, tenants: Tenants) -> Purged:
        """Delete held hooks, oldest first, durably."""

    def limits(self, tenants: Tenants) -> Limits:
        """The default ingest limit, and every tenant with one of its own, in order of their names."""

    def limit(self, tenant_id: str) -> TenantLimit:
        """One tenant's ingest limit and where it comes from."""

    async def set_limit(self, tenant_id: str, rate: float, burst: int) -> TenantLimit:
        """Override a tenant's ingest limit, durably; it holds at once."""

    async def drop_limit(self, tenant_id: str) -> bool:
        """Take an override back, durably. False when there is none."""
