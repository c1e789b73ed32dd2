"""The embedded host of the route store: where routes and ip rules are kept."""

from __future__ import annotations

from schemas.records import Change, RouteRecord, decode_route_record
from streams.local.log import LocalLog


class LocalRouteHost:
    """Implements `ankusa.routes.store.RouteLog`."""

    def __init__(self, log: LocalLog) -> None:
        self._log = log

    def now(self) -> int:
        return self._log.now()

    def kept_routes(self) -> list[RouteRecord]:
        return [decode_route_record(value) for value in self._log.tables.set_up("routes").values()]

    async def begin(self) -> None:
        """Nobody else changes routes here."""

    async def change(self, record: RouteRecord, audit: Change | None) -> None:
        await self._log.change(record, audit)
