"""Where a fleet keeps what operators set up: the topic `sources`, each change with its audit record in one transaction.

A change is judged and stored by one worker at a time (`source_writer.py`), by what the topic says up to its end; edges
and workers follow it (`source_feed.py`). Owns the thread in which that blocks.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

from ankusa.store.errors import StoreError
from schemas import records
from schemas.records import Change
from streams.kafka.topics import TopicNames

FOLLOW_S = 10.0
"""How long a change waits for this worker to have read what others changed."""


class Writer(Protocol):
    """Implemented by `source_writer.SourceWriter`. Blocks."""

    def begin(self) -> int: ...
    def commit(self, records: list[tuple[str, bytes, bytes | None]]) -> None: ...


class SetUpLog:
    """For the changes of one store, which come one at a time: two stores need two, each with a writer of its own.
    `followed` returns when the topic has been read up to an offset."""

    def __init__(self, names: TopicNames, writer: Writer, followed: Callable[[int], Awaitable[None]]) -> None:
        self._names = names
        self._writer = writer
        self._followed = followed
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="ankusa-source-writer")

    async def begin(self) -> None:
        """A change comes next: what others have changed is told before it returns. Raises StoreError."""
        ends = await asyncio.get_running_loop().run_in_executor(self._executor, self._writer.begin)
        try:
            await asyncio.wait_for(self._followed(ends), FOLLOW_S)
        except TimeoutError:
            raise StoreError(f"{self._names.sources} is not read to its end in {FOLLOW_S:.0f} s") from None

    async def store(self, key: str, value: bytes | None, audit: Change | None) -> None:
        """Store what `key` says from now on, None for nothing any more. Raises StoreError: then nothing of it is
        stored, or nobody knows yet; ContendedError when another worker has begun meanwhile."""
        written: list[tuple[str, bytes, bytes | None]] = [(self._names.sources, key.encode(), value)]
        if audit is not None:
            written.append((self._names.audit, audit.subject.encode(), records.encode(audit)))
        await asyncio.get_running_loop().run_in_executor(self._executor, self._writer.commit, written)
