"""What was read of a partition and is not folded yet, and in which order it is: no outcome before its hook.

Topics are read independently. What the owner of before had folded and not yet in its changelog is read again by the
next one, which may be handed an outcome before its hook: it would count for nothing, and the hook would be delivered
again although the log has it as delivered. So outcomes wait until the hooks they name are folded, as far as `hooks`
went when the partition was opened: no owner of before can name a later one. All else is folded as it was read, as soon
as the partition's fold has room. Owns that order; folds nothing.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

from schemas.records import CheckIn, DecodeError, OutcomeBatch, Topic, decode_outcome_record
from streams.kafka.places import offset_of
from streams.kafka.sender import Acknowledge

log = logging.getLogger("ankusa.kafka")

HELD_BYTES = 64 << 20
"""Of outcomes that wait. What an owner had folded and not in its changelog is some hundred milliseconds of work; only a
changelog that was lost makes more of it. Past this they are folded as they come, and their hooks delivered again."""


class Record(NamedTuple):
    """A record that was read, and what to call when the changelog has what it did."""

    topic: Topic
    offset: int
    timestamp_ms: int
    value: bytes | None
    acknowledge: Acknowledge


class InTurn:
    """One partition's records that were read and are not folded. `folded` gives the offset of the last record folded of
    `hooks`; `last` is the last that there was when the partition was opened."""

    def __init__(self, partition: int, last: int, folded: Callable[[], int]) -> None:
        self._partition = partition
        self._last = last
        self._folded = folded
        self._read: deque[Record] = deque()
        self._held: deque[tuple[int, Record]] = deque()
        self._held_bytes = 0
        self._gave_up = False
        self._waiting: dict[tuple[Topic, int], Acknowledge] = {}

    def add(self, record: Record) -> None:
        """A record was read. One that waits already waits once, and is acknowledged to whoever handed it on last:
        nobody may wait for the one before, which was read as part of a gap."""
        place = record.topic, record.offset
        if place not in self._waiting:
            self._read.append(record)
        self._waiting[place] = record.acknowledge

    def next(self) -> Record | None:
        """Take the record to fold next. None when none is there, or none whose turn has come."""
        record = self._released()
        while record is None and self._read:
            first = self._read.popleft()
            if not self._holds(first):
                record = first
        if record is None:
            return None
        acknowledge = self._waiting.pop((record.topic, record.offset))
        return record if acknowledge is record.acknowledge else record._replace(acknowledge=acknowledge)

    def _released(self) -> Record | None:
        if not self._held or (self._held[0][0] > self._folded() and not self._gave_up):
            return None
        _, record = self._held.popleft()
        self._held_bytes -= len(record.value or b"")
        return record

    def _holds(self, record: Record) -> bool:
        if record.topic is not Topic.OUTCOMES:
            return False
        if not self._held:  # for all of an owner's life but its first moments
            if self._gave_up or self._folded() >= self._last:
                return False
            if self._folded() >= self._needed(record):
                return False
        self._held.append((self._needed(record), record))
        self._held_bytes += len(record.value or b"")
        if self._held_bytes > HELD_BYTES and not self._gave_up:
            self._gave_up = True
            log.warning("event=outcomes_out_of_turn partition=%d held=%d", self._partition, len(self._held))
        return True

    def _needed(self, record: Record) -> int:
        return min(_named(record.value), self._last)

    @property
    def waiting(self) -> int:
        """Records that were read and whose turn has not come."""
        return len(self._waiting)


def _named(value: bytes | None) -> int:
    """The highest offset of `hooks` that an outcome record names, -1 for none."""
    try:
        record = None if value is None else decode_outcome_record(value)
    except DecodeError:  # the fold sets it aside
        return -1
    seqs: Sequence[int] = ()
    if isinstance(record, OutcomeBatch):
        seqs = [item.seq for item in record.items]
    elif isinstance(record, CheckIn):
        seqs = record.seqs
    return max(map(offset_of, seqs), default=-1)
