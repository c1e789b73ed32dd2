"""One partition's fold: records of its topics in, one batch of its tables each, changelog entries out.

The order of writing: (1) skip what the markers say is folded, (2) fold the record with the shared fold against the
tables, (3) put its operations, the topic's marker and the entries not sent yet into one batch, (4) write it, (5)
announce its rows. The entries are kept in the store (family `log`, by turn) until `sent` says that the changelog has
them: a process that dies in between sends them again, so that the tables never hold what the changelog will not.

A record that cannot be folded is set aside and marked as folded: it stops nothing. So is one whose entries the
changelog would not take. A store that cannot write raises, and nothing may be folded after it. Never talks to Kafka,
and imports nothing of Faust.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from ankusa.core import ops as operations
from ankusa.store import keys
from ankusa.store.database import Batch
from ankusa.store.errors import StoreError
from ankusa.store.tables import Applied, Tables
from schemas.records import DecodeError, Topic
from streams.kafka.changelog import Entry, Letters, Recorder, decode_entries, encode_entries
from streams.kafka.history import expire, note
from streams.kafka.marker import Markers, encode_marker, marker_key
from streams.kafka.record_fold import RecordFold
from streams.kafka.restoring import put_state, read_state
from streams.kafka.set_aside import SetAsides, reason_of

log = logging.getLogger("ankusa.kafka")


class Folded(NamedTuple):
    """What a record did. `turn` is its own, or that of the last record when it was `skipped`: it is safe once the
    changelog has everything up to that turn. `entries` are for the changelog. `takeover` names the owner that a
    takeover is of."""

    turn: int
    entries: Sequence[Entry]
    skipped: bool = False
    takeover: str | None = None


class _Filled(NamedTuple):
    """A batch that is ready to be written, and what it holds."""

    batch: Batch
    entries: Sequence[Entry]
    ops: Sequence[operations.Op]
    applied: Applied
    gone: Mapping[str, int]


class Figures(Struct):
    """What was folded since the tables were opened."""

    records: int = 0
    rows: int = 0
    skipped: int = 0
    refused_pages: int = 0
    gone: dict[str, int] = {}
    """Ids and attempts past their time, by family."""


class PartitionFold:
    """The fold of one partition into `tables`. One thread writes: nobody else may, beside `sent`."""

    def __init__(self, partition: int, tables: Tables, entry_bytes: int | None = None) -> None:
        """`entry_bytes` is the largest entry that the changelog takes, None where none is sent. Raises StoreError when
        the markers cannot be read."""
        self.partition = partition
        self.tables = tables
        self._entry_bytes = entry_bytes
        self.figures = Figures()
        self._letters = Letters(tables.database.handles)
        try:
            self._markers = Markers(tables.database)
        except (*DecodeError, ValueError) as error:
            raise StoreError(f"{tables.database.path}: a marker cannot be decoded: {error}") from error
        self.set_asides = SetAsides(tables.database)
        self._sent_turn = read_state(tables).turn

    @property
    def turn(self) -> int:
        """How many records the partition's tables are made of."""
        return self._markers.last.turn

    @property
    def at(self) -> int:
        """Log time: that of the latest record of any topic, unix ms."""
        return self._markers.at

    @property
    def unsent_records(self) -> int:
        """Records that the changelog does not have yet."""
        return self.turn - self._sent_turn

    @property
    def epoch(self) -> int:
        """The epoch of the partition's owner: one more than the offset of the last takeover, 0 before the first."""
        return self._markers.last.epoch

    def offset(self, topic: Topic) -> int:
        """The offset of the last record folded of `topic`, -1 when none is."""
        return self._markers.offset(topic)

    # -- folding ------------------------------------------------------------

    def fold(self, topic: Topic, offset: int, timestamp_ms: int, value: bytes | None) -> Folded:
        """Fold a record. Raises StoreError when the store refuses; then it is not folded."""
        if offset <= self._markers.offset(topic):
            self.figures.skipped += 1
            return Folded(self.turn, (), skipped=True)
        record = RecordFold(self.partition, topic, self._markers.following(topic, offset, timestamp_ms), self.tables)
        try:
            filled = self._filled(record, record.fold(value))
        except StoreError:
            raise
        except Exception as error:  # whatever it is, it is this record's alone, and the next one is folded
            log.error(
                "event=record_set_aside topic=%s partition=%d offset=%d reason=%s",
                *(topic.name.lower(), self.partition, offset, reason_of(error)),
                exc_info=None if isinstance(error, (*DecodeError, ValueError)) else error,
            )
            record.unreadable(error)
            filled = self._filled(record, [])
        # Whatever fails from here on is not the record's fault: it is in the store, or the store refuses.
        self.tables.database.write(filled.batch)
        self._written(record, filled)
        return Folded(record.marker.turn, filled.entries, takeover=record.takeover)

    def _filled(self, record: RecordFold, ops: Sequence[operations.Op]) -> _Filled:
        """Step 3."""
        database, marker = self.tables.database, record.marker
        batch = database.batch()
        recorder = Recorder(batch, self._letters)
        applied = self.tables.apply(recorder, ops)
        self.set_asides.put(recorder, record.asides)
        recorder.put(marker_key(record.topic), encode_marker(marker), database.handles["meta"])
        gone = {} if record.expires_before is None else expire(database, batch, recorder, record.expires_before)
        entries = recorder.entries(marker.turn, marker.at)
        for key, value in entries:
            if self._entry_bytes is not None and len(key) + len(value or b"") > self._entry_bytes:
                size_bytes = len(key) + len(value or b"")
                raise ValueError(f"an entry of {size_bytes} bytes, where the changelog takes {self._entry_bytes}")
        for letter, pairs in recorder.packs.items():
            note(batch, database.handles["meta"], letter + keys.u64(marker.turn), marker.at, pairs)
        batch.put(keys.u64(marker.turn), encode_entries(entries), database.handles["log"])
        return _Filled(batch, entries, ops, applied, gone)

    def _written(self, record: RecordFold, filled: _Filled) -> None:
        """Steps 4 and 5 are done: memory follows."""
        self._markers.folded(record.topic, record.marker)
        self.set_asides.added(record.asides)
        filled.applied.written()
        record.remember(filled.ops)
        filled.applied.announce()
        self.figures.records += 1
        self.figures.refused_pages += record.refused
        for family, count in filled.gone.items():
            self.figures.gone[family] = self.figures.gone.get(family, 0) + count
        self.figures.rows += sum(type(op) is operations.PutRow for op in filled.ops)

    # -- what the changelog has -----------------------------------------------

    def unsent(self) -> Iterator[tuple[int, list[Entry]]]:
        """`(turn, entries)` of records of which nobody has said that they were sent, in order."""
        for key, value in self.tables.database.items("log", b"", b"\xff"):
            yield keys.read_u64(key), decode_entries(value)

    def sent(self, first: int, last: int, following: int, at: int) -> None:
        """The changelog has the entries of turns `first` to `last`, at `at` (unix ms); `following` is the offset after
        them."""
        batch = self.tables.database.batch()
        handle = self.tables.database.handles["log"]
        for turn in range(first, last + 1):
            batch.delete(keys.u64(turn), handle)
        put_state(self.tables, batch, replace(read_state(self.tables), offset=following, turn=last, at=at))
        self.tables.database.write(batch)
        self._sent_turn = last
