"""The embedded host of the dispatcher: rows, hooks and outcomes of one local log."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from ankusa.dispatch import waiting
from ankusa.dispatch.ports import Place, Waiting, Written
from ankusa.store import keys
from ankusa.store.due import DueIndex
from schemas.records import INDEX_BITS, Breaker, CheckIn, Envelope, Job, Lane, OutcomeBatch, Row
from streams.local.log import LocalLog


class _Claimed:
    """What the fold of an outcome batch reads: rows as they were claimed, so that none is read a second time.

    A claimed row cannot change under its claim: only outcomes move pending rows, and its outcome is this one.
    """

    def __init__(self, log: LocalLog, rows: Mapping[Place, Row]) -> None:
        self._log = log
        self._rows = rows

    def row(self, seq: int, sink: int) -> Row | None:
        found = self._rows.get((seq, sink))
        return self._log.tables.row(seq, sink) if found is None else found

    def job(self, job_id: str) -> Job | None:
        return self._log.tables.job(job_id)

    def breaker(self, key: str) -> Breaker | None:
        return self._log.tables.breaker(key)

    def lane(self, key: str) -> Lane | None:
        return self._log.tables.lane(key)

    def members(self, key: str, place: int = 0) -> Iterator[tuple[int, int]]:
        return self._log.tables.members(key, place)

    def checked_in(self, seq: int) -> tuple[str, int] | None:
        return self._log.tables.checked_in(seq)

    def pack(self, pack: str) -> CheckIn | None:
        return self._log.tables.pack(pack)

    def dedupe(self, key: str) -> tuple[str, int] | None:
        return self._log.tables.dedupe(key)


class LocalDispatchHost:
    """Implements `ankusa.dispatch.ports.DispatchHost`."""

    partition_of = None

    def __init__(self, log: LocalLog) -> None:
        self._log = log

    @property
    def live(self) -> DueIndex:
        return self._log.tables.live

    @property
    def replayed(self) -> DueIndex:
        return self._log.tables.replayed

    @property
    def unavailable(self) -> str | None:
        return self._log.unavailable

    def claimable(self, seq: int) -> bool:
        return seq >> INDEX_BITS not in self._log.undurable

    def may_begin(self) -> bool:
        return True

    def rows(self, places: list[Place]) -> list[Row | None]:
        return self._log.tables.claim_rows(places)

    def hook(self, seq: int) -> tuple[Envelope, bytes] | None:
        return self._log.tables.hook(seq)

    def fetches(self, seq: int, fetched: Callable[[], None]) -> bool:
        return False

    def hook_stored(self, seq: int) -> bool:
        key = keys.u64(seq)
        return bool(self._log.tables.database.present("hooks", [key]))

    def waiting(self, source_id: str) -> Iterator[list[Waiting]]:
        return waiting.waiting(self._log, source_id)

    def breakers(self) -> dict[str, Breaker]:
        return self._log.tables.breakers()

    def checked_in(self, seq: int) -> tuple[str, int] | None:
        return self._log.tables.checked_in(seq)

    async def check_in(self, record: CheckIn) -> None:
        await self._log.check_in(record)

    def publish(self, batch: OutcomeBatch, claimed: Mapping[Place, Row], written: Written) -> None:
        self._log.publish(batch, _Claimed(self._log, claimed))
        written(None)
