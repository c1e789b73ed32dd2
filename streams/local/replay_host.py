"""The embedded host of replays: the jobs, dead rows and pages of one local log."""

from __future__ import annotations

from collections.abc import Callable, Collection

from ankusa.core.pressure import Pressure
from ankusa.replay.reading import StoreReplays
from ankusa.store.errors import StoreError
from ankusa.store.tables import Tables
from schemas.records import Job, JobPatch, JobRecord, Page
from streams.local.log import LocalLog


class LocalReplayHost(StoreReplays):
    """Implements `ankusa.replay.ports.OperatedHost` and `PagingHost`. `pressure` is the dispatcher's."""

    def __init__(self, log: LocalLog, pressure: Callable[[], Pressure | None], roles: Collection[str]) -> None:
        self._log = log
        self._pressure = pressure
        self.roles = frozenset(roles)

    def now(self) -> int:
        return self._log.now()

    def pressure(self) -> Pressure | None:
        return self._pressure()

    def _tables(self) -> Tables:
        """The tables, while they are open: a recovery that failed leaves them closed until the next one."""
        tables = self._log.tables
        if not tables.database.handles:
            raise StoreError(self._log.unavailable or f"{self._log.path} is closed")
        return tables

    async def command(self, record: JobRecord) -> None:
        self._tables()
        await self._log.command(record)

    def begun(self) -> list[Job]:
        return []

    async def complete(self, job: Job) -> None:
        """It is."""

    async def pass_on(self, patch: JobPatch) -> None:
        """There is nobody."""

    async def publish(self, page: Page) -> None:
        self._tables()
        self._log.publish(page)
