"""The embedded host of replays: the jobs, dead rows and pages of one local log."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice

from ankusa.core.pressure import Pressure
from ankusa.replay.ports import Unreadable
from ankusa.store import keys
from ankusa.store.errors import StoreError
from ankusa.store.tables import Tables
from schemas.records import DecodeError, Job, JobRecord, Page, Row, RowState, decode_row
from streams.local.log import LocalLog


class LocalReplayHost:
    """Implements `ankusa.replay.ports.ReplayHost`. `pressure` is the dispatcher's."""

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

    def jobs(self) -> list[Job]:
        with _decoding("jobs"):
            return self._tables().jobs()

    def job(self, job_id: str) -> Job | None:
        with _decoding(f"job {job_id}"):
            return self._tables().job(job_id)

    def dead_keys(self, start: bytes, end: bytes, limit: int) -> list[bytes]:
        found = self._tables().database.keys("dead", start, end)
        taken = list(islice(found, limit))
        # Not left to the collector: an iterator that lives on would keep the store's lock over a recovery.
        found.close()  # type: ignore[attr-defined]
        return taken

    def dead_keys_of(self, hook_id: str) -> list[bytes]:
        tables = self._tables()
        seq = tables.seq_of(hook_id)
        if seq is None:
            return []
        found = []
        for key, value in tables.database.items("rows", keys.u64(seq), keys.u64(seq + 1)):
            row = _row(value)
            if isinstance(row, Row) and row.state is RowState.DEAD:
                found.append(keys.dead_key(row.at, *keys.split_row_key(key)))
        return sorted(found)

    def rows(self, places: Sequence[tuple[int, int]]) -> list[Row | Unreadable | None]:
        stored = self._tables().database.get_many("rows", [keys.row_key(*place) for place in places])
        return [None if value is None else _row(value) for value in stored]

    def dead_counts(self) -> Mapping[str, int]:
        return {key: counts[2] for key, counts in self._tables().counts.sinks()}

    async def command(self, record: JobRecord) -> None:
        self._tables()
        await self._log.command(record)

    async def publish(self, page: Page) -> None:
        self._tables()
        self._log.publish(page)


def _row(value: bytes) -> Row | Unreadable:
    try:
        return decode_row(value)
    except DecodeError:
        return Unreadable.UNREADABLE


@contextmanager
def _decoding(what: str) -> Iterator[None]:
    """A job that cannot be read is a store that cannot answer: leaving it out would hide it, and let it be doubled."""
    try:
        yield
    except DecodeError as error:
        raise StoreError(f"{what} cannot be decoded: {error}") from error
