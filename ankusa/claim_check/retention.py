"""Retention: packs older than `claim_check.retention_days` that no row needs are deleted (spec 04).

It goes by what the store lists, so that packs nobody knows of go too: those that a crash, or a check-in given up,
left behind. Owns when a pack goes; which are needed is the host's to say.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from ankusa.claim_check import reference as references
from ankusa.claim_check.blobs import BlobError, BlobStore
from ankusa.claim_check.stats import ClaimCheckStats
from ankusa.store.errors import StoreError

log = logging.getLogger("ankusa.claim_check")

DAY_MS = 86_400_000

PASS_MS = 3_600_000
"""Between passes, and the longest that one may take. A day more or less is all the same; a listing is not free."""


class Retention:
    """Sweeps one store. `needed` says whether a row is left of a pack's hooks and may raise StoreError; `clock` gives
    log time in unix ms."""

    def __init__(
        self,
        blobs: BlobStore,
        needed: Callable[[str], bool],
        retention_days: int | None,
        clock: Callable[[], int],
        stats: ClaimCheckStats,
    ) -> None:
        self._blobs = blobs
        self._needed = needed
        self._retention_days = retention_days
        self._clock = clock
        self._stats = stats
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Sweep now and for ever; nothing without `retention_days`."""
        if self._retention_days is not None:
            self._task = asyncio.create_task(self._run())

    async def _run(self) -> None:
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
        if self._retention_days is None:
            return
        kept = 0
        older_than = references.first_at(self._clock() - self._retention_days * DAY_MS)
        async for tenant_id, pack in self._blobs.older(older_than):
            if self._needed(pack):
                kept += 1
                continue
            await self._blobs.delete(tenant_id, pack)
            self._stats.deleted += 1
        self._stats.kept = kept

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
