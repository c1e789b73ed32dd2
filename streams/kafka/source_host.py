"""The Kafka host of the source store: the topics `sources` and `audit`, and what a source's rows do in the fleet.

A change is judged and stored by one worker at a time (`source_writer.py`), by what the topic says up to its end; edges
and workers follow it. What a source's rows do is the sum over all partitions (`source_rows.py`). Owns the keys of those
records, and nothing of a source.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

from ankusa.store.errors import StoreError
from schemas import records
from schemas.records import Change, SourceChange
from streams.kafka.source_rows import SourceRows
from streams.kafka.topics import TopicNames

log = logging.getLogger("ankusa.sources")

FOLLOW_S = 10.0
"""How long a change waits for this worker to have read what others changed."""


class Writer(Protocol):
    """Implemented by `source_writer.SourceWriter`. Blocks."""

    def begin(self) -> int: ...
    def commit(self, records: list[tuple[str, bytes, bytes | None]]) -> None: ...


class KafkaSourceHost:
    """Implements `ankusa.source_store.store.SourceLog` and `Deliveries`. `kept` is what the topic held at first;
    `followed` returns when the topic has been read up to an offset."""

    def __init__(
        self,
        names: TopicNames,
        writer: Writer,
        rows: SourceRows,
        clock: Callable[[], int],
        followed: Callable[[int], Awaitable[None]],
        kept: Mapping[str, SourceChange | None],
    ) -> None:
        self._names = names
        self._writer = writer
        self._rows = rows
        self._clock = clock
        self._followed = followed
        self._kept = [change for change in kept.values() if change is not None]
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="ankusa-source-writer")

    def now(self) -> int:
        return self._clock()

    def kept_sources(self) -> list[SourceChange]:
        return self._kept

    async def begin(self) -> None:
        ends = await asyncio.get_running_loop().run_in_executor(self._executor, self._writer.begin)
        try:
            await asyncio.wait_for(self._followed(ends), FOLLOW_S)
        except TimeoutError:
            raise StoreError(f"{self._names.sources} is not read to its end in {FOLLOW_S:.0f} s") from None

    async def change(self, record: SourceChange, audit: Change | None) -> None:
        value = None if record.spec is None else records.encode(record)
        written: list[tuple[str, bytes, bytes | None]] = [(self._names.sources, record.source_id.encode(), value)]
        if audit is not None:
            written.append((self._names.audit, audit.subject.encode(), records.encode(audit)))
        await asyncio.get_running_loop().run_in_executor(self._executor, self._writer.commit, written)

    async def unsettled(self, source_id: str) -> tuple[int, int]:
        return await self._rows.unsettled(source_id)

    async def dead_letter_source(self, source_id: str) -> int | None:
        try:
            return await self._rows.dead_letter(source_id)
        except StoreError as error:
            log.warning("event=dead_letter_source_refused source=%s reason=%s", source_id, error)
            return None
