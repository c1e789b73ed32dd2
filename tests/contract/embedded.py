"""The embedded host under the contract suite: a real log on a real RocksDB, a real dispatcher, virtual time."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from ankusa.claim_check.check_ins import CheckIns
from ankusa.clock import unguessable
from ankusa.core.fold import Accepted
from ankusa.dispatch.dispatcher import Dispatcher
from ankusa.store.errors import StoreError
from ankusa.store.tables import Tables
from schemas.records import JobRecord, Page
from streams.local.dispatch_host import LocalDispatchHost
from streams.local.log import LocalLog
from streams.local.pack_host import LocalPackHost
from streams.local.sweeper import Sweeper
from tests.contract.driven import DrivenHost, Entry


class EmbeddedHost(DrivenHost):
    """Implements `tests.contract.host.Host`."""

    dispatch_host: LocalDispatchHost

    async def _start(self) -> None:
        self.log = LocalLog(self._store, lambda: self.at, self.loop.time)
        self.dispatch_host = LocalDispatchHost(self.log)
        check_ins = CheckIns(self.dispatch_host, self.blobs, self._pack_max_bytes, self.log.now, unguessable)
        self.dispatcher = Dispatcher(
            self.dispatch_host, self._sources, self._settings, self.log.now, lambda: 1.0, check_ins
        )
        self.log.on_rows = self.dispatcher.wake
        self._count_turns()
        self.dispatcher.wake()

    def _busy(self) -> bool:
        log: LocalLog | None = getattr(self, "log", None)
        return log is not None and log._flusher._running

    @property
    def stores(self) -> Sequence[Tables]:
        return [self.log.tables]

    async def _commit(self, entries: list[Entry]) -> None:
        answers = await self.log.commit(entries, [])
        assert all(isinstance(answer, Accepted) for answer in answers)

    async def _command(self, record: JobRecord) -> None:
        await self.log.command(record)

    async def _page(self, page: Page) -> None:
        self.log.publish(page)

    def _close_log(self) -> None:
        self.log.close()

    def _pack_host(self) -> LocalPackHost:
        return LocalPackHost(self.log)

    def sweep_lanes(self) -> None:
        async def sweep() -> None:
            for _ in Sweeper(self.log).lanes(self.log.now()):
                pass

        self.loop.run(sweep())

    def refuse_writes(self, refuse: bool) -> None:
        if not refuse:
            self.log.recover()
            return

        def write(_: Any) -> None:
            raise StoreError("No space left on device")

        self.log.tables.database.write = write  # type: ignore[method-assign]

    def refuse_writes_after_taking_them(self) -> None:
        write = self.log.tables.database.write

        def take_and_refuse(batch: Any) -> None:
            write(batch)
            raise StoreError("Input/output error")

        self.log.tables.database.write = take_and_refuse  # type: ignore[method-assign]


@contextlib.contextmanager
def embedded(folder: Path, **dispatch: Any) -> Iterator[EmbeddedHost]:
    host = EmbeddedHost(folder, **dispatch)
    try:
        yield host
    finally:
        host.close()
