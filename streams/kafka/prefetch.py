"""The tables as an outcome batch reads them: its rows fetched in one read instead of one each."""

from __future__ import annotations

from collections.abc import Iterator

from ankusa.store import keys
from ankusa.store.tables import Tables
from schemas import records
from schemas.records import Breaker, CheckIn, Job, Lane, Row


class Prefetched:
    """Implements `ankusa.core.fold.Tables`. Good for one record: it does not see what is written later."""

    def __init__(self, tables: Tables, places: list[tuple[int, int]]) -> None:
        self._tables = tables
        stored = tables.database.get_many("rows", [keys.row_key(*place) for place in places])
        self._stored = dict(zip(places, stored, strict=True))

    def row(self, seq: int, sink: int) -> Row | None:
        if (seq, sink) not in self._stored:
            return self._tables.row(seq, sink)
        stored = self._stored[seq, sink]
        try:
            return None if stored is None else records.decode_row(stored)
        except records.DecodeError:
            return self._tables.row(seq, sink)  # which says what is done with such a row

    def job(self, job_id: str) -> Job | None:
        return self._tables.job(job_id)

    def breaker(self, key: str) -> Breaker | None:
        return self._tables.breaker(key)

    def lane(self, key: str) -> Lane | None:
        return self._tables.lane(key)

    def members(self, key: str, place: int = 0) -> Iterator[tuple[int, int]]:
        return self._tables.members(key, place)

    def checked_in(self, seq: int) -> tuple[str, int] | None:
        return self._tables.checked_in(seq)

    def pack(self, pack: str) -> CheckIn | None:
        return self._tables.pack(pack)

    def dedupe(self, key: str) -> tuple[str, int] | None:
        return self._tables.dedupe(key)
