"""Retention: what is known of packs that no row needs any more, and in the end the packs themselves (spec 04).

A pack may go when no row is left of any of its hooks, and with `claim_check.retention_days` it does once it is older
than that; without, only what the tables know of it. In a store of its own a node also deletes what no record names:
what a crash, or a check-in given up, left behind. Owns when a pack goes; which are needed is the host's to say.
"""

from __future__ import annotations

import asyncio
import logging
from typing import NamedTuple, Protocol

from ankusa.claim_check import reference as references
from ankusa.claim_check.blobs import BlobError, BlobStore
from ankusa.claim_check.stats import ClaimCheckStats
from ankusa.store.errors import StoreError

log = logging.getLogger("ankusa.claim_check")

DAY_MS = 86_400_000

PASS_MS = 3_600_000
"""Between passes, and the longest that one may take. A day more or less is all the same; a listing is not free."""

PAUSE_MS = 10
"""Between two looks at the tables, so that no delivery notices a pass."""

YOUNG_MS = 600_000
"""A pack younger than this is left alone: its record may be on its way still."""


class KnownPack(NamedTuple):
    """A pack that the tables name, and whether a row is left of one of its hooks."""

    pack: str
    tenant_id: str
    needed: bool


class PackHost(Protocol):
    """What a node knows of packs. Every method may raise StoreError."""

    def now(self) -> int:
        """Log time, unix ms."""

    def packs(self, start: str, end: str) -> list[KnownPack]:
        """Some of the known packs from `start` on and before `end`, in order; none when there are no more."""

    def has_pack(self, pack: str) -> bool: ...
    def forget(self, packs: list[str]) -> None:
        """The tables need not know of these packs any more."""


class Retention:
    """Sweeps one node's packs."""

    def __init__(self, blobs: BlobStore, host: PackHost, retention_days: int | None, stats: ClaimCheckStats) -> None:
        self._blobs = blobs
        self._host = host
        self._keep_ms = None if retention_days is None else retention_days * DAY_MS
        self._stats = stats
        self._task: asyncio.Task[None] | None = None

    def start(self, after_ms: int = 0) -> None:
        """Sweep in `after_ms`, and for ever."""
        self._task = asyncio.create_task(self._run(after_ms))

    async def _run(self, after_ms: int) -> None:
        await asyncio.sleep(after_ms / 1000)
        while True:
            try:
                async with asyncio.timeout(PASS_MS / 1000):
                    await self.sweep()
            except TimeoutError:
                log.warning("event=retention_late after_ms=%d", PASS_MS)
            except (BlobError, StoreError) as error:
                log.warning("event=retention_refused reason=%s", error)
            except Exception:
                log.exception("event=retention_failed")
            await asyncio.sleep(PASS_MS / 1000)

    async def sweep(self) -> None:
        """One pass. Raises BlobError or StoreError; what it did is done, and the next pass goes on."""
        older_than = references.first_at(self._host.now() - (YOUNG_MS if self._keep_ms is None else self._keep_ms))
        await self._known(older_than)
        if self._keep_ms is not None:
            await self._unknown(older_than)

    async def _known(self, older_than: str) -> None:
        kept, start = 0, ""
        while page := self._host.packs(start, older_than):
            gone = []
            try:
                for pack, tenant_id, needed in page:
                    if needed:
                        kept += 1
                        continue
                    if self._keep_ms is not None:
                        await self._blobs.delete(tenant_id, pack)
                        self._stats.deleted += 1
                    gone.append(pack)
            finally:
                self._host.forget(gone)
            start = page[-1].pack + "\0"
            await asyncio.sleep(PAUSE_MS / 1000)
        self._stats.kept = 0 if self._keep_ms is None else kept

    async def _unknown(self, older_than: str) -> None:
        async for tenant_id, pack in self._blobs.older(older_than):
            if not self._host.has_pack(pack):
                await self._blobs.delete(tenant_id, pack)
                self._stats.deleted += 1

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
