"""What a replay reads of one store: its jobs and its dead rows. Hosts add the log, and the way to open tables.

Reads only. Nothing is held open between calls, so that a store may be opened again, or go elsewhere.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice

from ankusa.replay.ports import Unreadable
from ankusa.store import keys
from ankusa.store.errors import StoreError
from ankusa.store.tables import Tables
from schemas.records import DecodeError, Job, Row, RowState, decode_row


class StoreReplays(ABC):
    """The reading half of `ankusa.replay.ports.ReplayHost`."""

    @abstractmethod
    def _tables(self) -> Tables:
        """The tables, while they may be read. Raises StoreError."""

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
