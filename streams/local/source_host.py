"""The embedded host of the source store: where sources are kept, and what their rows do."""

from __future__ import annotations

from ankusa.dispatch.dispatcher import Dispatcher
from schemas.records import Change, SourceChange, decode_source_change
from streams.local.log import LocalLog


class LocalSourceHost:
    """Implements `ankusa.source_store.store.SourceLog` and `Deliveries`."""

    def __init__(self, log: LocalLog, dispatcher: Dispatcher) -> None:
        self._log = log
        self._dispatcher = dispatcher

    def now(self) -> int:
        return self._log.now()

    def kept_sources(self) -> list[SourceChange]:
        return [decode_source_change(value) for value in self._log.tables.set_up("sources").values()]

    async def begin(self) -> None:
        """Nobody else changes sources here."""

    async def change(self, record: SourceChange, audit: Change | None) -> None:
        await self._log.change(record, audit)

    async def unsettled(self, source_id: str) -> tuple[int, int]:
        """From kept counts and the window; no row is read."""
        live, replayed, _ = self._log.tables.counts.of_source(source_id)
        claims = self._dispatcher.claims.by_place.values()
        claimed = sum(1 for claim in claims if claim.row.source_id == source_id)
        return max(0, live + replayed - claimed), claimed

    async def dead_letter_source(self, source_id: str) -> int | None:
        return await self._dispatcher.dead_letter_source(source_id)
