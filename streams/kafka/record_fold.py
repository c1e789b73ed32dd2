"""One record being folded: which fold reads it, and what of it could not be read.

Owns how each topic's bytes are read, and what a partition adds to the shared folds: places, the fence of pages, and
that producers may repeat themselves. Writes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

from ankusa.core import fold
from ankusa.core import ops as operations
from ankusa.store.recent import NO_ROWS, due_rows
from ankusa.store.tables import Tables
from schemas import records
from schemas.records import (
    FORMAT_VERSION,
    INDEX_BITS,
    DecodeError,
    Envelope,
    Held,
    HistoryExpiry,
    JobPatch,
    JobRecord,
    JobStart,
    OutcomeBatch,
    Page,
    Purge,
    Takeover,
    Topic,
)
from streams.kafka import places
from streams.kafka.marker import Marker
from streams.kafka.prefetch import Prefetched
from streams.kafka.set_aside import SetAside, reason_of

SINK_KEY_SLASHES = 3
"""In `tenant/source/index/type`: keys are split at them, by whoever shows what is in the tables."""


def _readable(envelope: Envelope) -> Envelope:
    """Raises ValueError where the keys that are made of it could not be read again."""
    if any(mark in name for name in (envelope.tenant_id, envelope.source_id) for mark in "/\0"):
        raise ValueError("a tenant or source with a slash or NUL in its name")
    if envelope.ordering_keys and len(envelope.ordering_keys) != len(envelope.sinks):
        raise ValueError("ordering keys that are not the sinks'")
    return envelope


def _runnable(record: JobRecord) -> JobRecord:
    """Raises ValueError where a replayer could not go by it."""
    job_id = record.job.id if isinstance(record, JobStart) else record.id
    rate = record.job.rate if isinstance(record, JobStart) else record.rate if isinstance(record, JobPatch) else None
    if not job_id or (rate is not None and rate < 1):
        raise ValueError("a job without an id, or with a rate below 1")
    return record


def epoch_of(offset: int) -> int:
    """The epoch of the owner whose takeover is at `offset` of the partition's outcomes: greater than all before, and
    never 0, which a page has that knows of none."""
    return offset + 1


class RecordFold:
    """One record of `topic`. `marker` is the one to write with it, `asides` what could not be read."""

    __slots__ = (
        "_hooks",
        "_partition",
        "_tables",
        "asides",
        "expires_before",
        "marker",
        "refused",
        "takeover",
        "topic",
    )

    def __init__(self, partition: int, topic: Topic, marker: Marker, tables: Tables) -> None:
        self._partition = partition
        self._tables = tables
        self.topic = topic
        self.marker = marker
        self.asides: list[SetAside] = []
        self.refused = False
        self.takeover: str | None = None
        self.expires_before: int | None = None
        """Ids and attempts written before this (unix ms) may go."""
        self._hooks: Sequence[tuple[Envelope, bytes, bytes] | None] = ()

    def unreadable(self, error: Exception) -> None:
        """Nothing of the record is folded."""
        self.asides = []
        self._hooks = ()
        self.expires_before = None
        self._set_aside(reason_of(error))

    def fold(self, value: bytes | None) -> Sequence[operations.Op]:
        """Its operations. Raises whatever a fold does of bytes that are none of ours, and StoreError."""
        if value is None:
            # A compacted topic's way to say that a key is gone. The tables know by the record before.
            if self.topic is not Topic.REPLAYS:
                raise ValueError("a record without a value")
            return []
        match self.topic:
            case Topic.HOOKS:
                return self._commit(value)
            case Topic.OUTCOMES:
                return self._outcomes(value)
            case Topic.REPLAYS:
                return fold.fold_job(_runnable(records.decode_job_record(value)), self._tables)
            case Topic.QUARANTINE:
                return self._pen(value)
            case Topic.LIMITS:
                return fold.fold_limit(records.decode_limit_change(value))
            case Topic.AUDIT:
                records.decode_change(value)  # the topic is the audit trail: no table is made of it
                return []
            case _:
                raise ValueError(f"no table is a fold of {self.topic.name}")

    def _commit(self, value: bytes) -> Sequence[operations.Op]:
        """One hook that cannot be read keeps its place; the others of its commit are folded."""
        _, framed = records.decode_commit(value)
        if len(framed) > 1 << INDEX_BITS:
            raise ValueError(f"a commit of {len(framed)} hooks, of which a seq can number {1 << INDEX_BITS}")
        hooks: list[tuple[Envelope, bytes, bytes] | None] = []
        for index, (envelope, body) in enumerate(framed):
            try:
                hooks.append((_readable(records.decode_envelope(envelope)), envelope, body))
            except (*DecodeError, ValueError) as error:
                hooks.append(None)
                self._set_aside(f"hook {index}: {reason_of(error)}")
        self._hooks = hooks
        marker = self.marker
        offset = places.log_offset(self._partition, marker.offset)
        ops, _ = fold.fold_commit(offset, marker.at, hooks, self._tables, marker.turn)
        return ops

    def _outcomes(self, value: bytes) -> Sequence[operations.Op]:
        record, tables, marker = records.decode_outcome_record(value), self._tables, self.marker
        match record:
            case Takeover():
                self.takeover = record.owner
                self.marker = Marker(marker.offset, marker.at, marker.turn, epoch_of(marker.offset))
                return []
            case HistoryExpiry():
                self.expires_before = record.before
                return []
            case Page() if record.epoch != marker.epoch:
                self.refused = True
                return []
            case OutcomeBatch():
                if any(move.key.count("/") != SINK_KEY_SLASHES for move in record.breakers):
                    raise ValueError("a breaker of no sink key")
                rows = Prefetched(tables, [(item.seq, item.sink) for item in record.items])
                return fold.fold_outcomes(record, marker.turn, marker.at, rows)
            case _:
                return fold.fold_outcomes(record, marker.turn, marker.at, tables)

    def _pen(self, value: bytes) -> Sequence[operations.Op]:
        """Held hooks are framed as a commit's are; a purge is not. What is held already, or gone, is not counted
        twice: producers may repeat themselves."""
        tables = self._tables
        if value[:1] != bytes((FORMAT_VERSION,)):
            purge = records.decode_purge(value)
            there = {entry for entry in purge.entries if tables.held(entry.received_at, entry.id)}
            return fold.fold_purge(Purge(purge.at, tuple(there)))
        holds: dict[tuple[int, str], tuple[Held, bytes, bytes]] = {}
        for index, (held_bytes, body) in enumerate(records.decode_commit(value)[1]):
            try:
                held = records.decode_held(held_bytes)
            except DecodeError as error:
                self._set_aside(f"hook {index}: {reason_of(error)}")
                continue
            if not tables.held(held.received_at, held.id):
                holds.setdefault((held.received_at, held.id), (held, held_bytes, body))
        return fold.fold_held(holds.values())

    def _set_aside(self, reason: str) -> None:
        self.asides.append(SetAside(self.topic, self.marker.offset, self.marker.at, reason))

    def remember(self, ops: Sequence[operations.Op]) -> None:
        """Keep the hooks of a commit in memory for their first attempts."""
        if not self._hooks:
            return
        rows = due_rows(ops)
        for op in ops:
            if type(op) is not operations.PutHook:
                continue
            hook = self._hooks[places.index_of(op.seq)]
            if hook is not None:
                size_bytes = len(hook[1]) + len(hook[2])
                self._tables.recent.keep(op.seq, hook[0], hook[2], rows.get(op.seq, NO_ROWS), size_bytes)
