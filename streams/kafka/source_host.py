"""The Kafka host of the source store: where sources are kept, and what a source's rows do in the fleet.

What a source's rows do is the sum over all partitions (`source_rows.py`). Owns the keys of those records, and nothing
of a source.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

from ankusa.store.errors import StoreError
from schemas import records
from schemas.records import Change, SourceChange
from streams.kafka.set_up_log import SetUpLog
from streams.kafka.source_rows import SourceRows

log = logging.getLogger("ankusa.sources")


class KafkaSourceHost:
    """Implements `ankusa.source_store.store.SourceLog` and `Deliveries`. `kept` is what the topic held at first."""

    def __init__(
        self, kept_in: SetUpLog, rows: SourceRows, clock: Callable[[], int], kept: Mapping[str, SourceChange | None]
    ) -> None:
        self._log = kept_in
        self._rows = rows
        self._clock = clock
        self._kept = [change for change in kept.values() if change is not None]

    def now(self) -> int:
        return self._clock()

    def kept_sources(self) -> list[SourceChange]:
        return self._kept

    async def begin(self) -> None:
        await self._log.begin()

    async def change(self, record: SourceChange, audit: Change | None) -> None:
        value = None if record.spec is None else records.encode(record)
        await self._log.store(record.source_id, value, audit)

    async def unsettled(self, source_id: str) -> tuple[int, int]:
        return await self._rows.unsettled(source_id)

    async def dead_letter_source(self, source_id: str) -> int | None:
        try:
            return await self._rows.dead_letter(source_id)
        except StoreError as error:
            log.warning("event=dead_letter_source_refused source=%s reason=%s", source_id, error)
            return None
