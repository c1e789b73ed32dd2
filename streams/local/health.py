"""The store's health: refuse before the disk is full, say why, and open the store again when the cause is gone.

Every second a probe writes and fsyncs a small file beside the store, in a thread. While it fails, or less than
`RESERVE_BYTES` are free, commits are refused and deliveries go on from what is left; when the store itself has
refused a write it is opened again once the probe succeeds. Owns when; how is the log's.
"""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
from pathlib import Path

from ankusa.store.errors import StoreError
from streams.local.log import LocalLog

log = logging.getLogger("ankusa.store")

PROBE_MS = 1000
RESERVE_BYTES = 64 << 20
"""Free space kept for outcomes, flushes and compaction. RocksDB that runs into a full disk stops reading as well as
writing; refusing hooks this much earlier lets the rows that are stored still be delivered and settled."""


def probe(path: Path, size_bytes: int = 4096) -> str | None:
    """Write, fsync and remove a file in `path`; the reason when that, or the free space, fails."""
    try:
        free = shutil.disk_usage(path).free
        if free < RESERVE_BYTES:
            return f"disk full: {free >> 20} MiB free at {path}, {RESERVE_BYTES >> 20} MiB are kept in reserve"
        file = path / ".probe"
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        try:
            os.write(descriptor, b"\0" * size_bytes)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        file.unlink(missing_ok=True)  # another probe, of an edge that asks, may have been quicker
    except OSError as error:
        return f"{path} takes no durable write: {error.strerror or error}"
    return None


class Health:
    """Watches one log's directory."""

    def __init__(self, store: LocalLog) -> None:
        self._store = store
        self._task: asyncio.Task[None] | None = None
        self.recoveries = 0

    async def start(self) -> None:
        """Probe once, then for ever."""
        await self.check()
        self._task = asyncio.create_task(self._watch())

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(PROBE_MS / 1000)
            try:
                await self.check()
            except Exception:
                log.exception("event=health_check_failed")

    async def check(self) -> str | None:
        """Probe now, recover when that is possible; the reason commits are refused, if they are."""
        reason = await asyncio.to_thread(probe, self._store.path.parent)
        if (reason is None) != (self._store.low_space is None):
            log.warning("event=%s reason=%s", "store_refusing" if reason else "store_accepting", reason)
        self._store.low_space = reason
        if reason is None and self._store.unavailable is not None:
            self._recover()
        return self._store.refusing

    def _recover(self) -> None:
        was = self._store.unavailable
        try:
            self._store.recover()
        except StoreError as error:
            log.warning("event=store_recovery_failed reason=%s", error)
            return
        self.recoveries += 1
        log.warning("event=store_recovered was=%s", was)

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
