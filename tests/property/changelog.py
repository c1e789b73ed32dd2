"""A partition whose worker dies: its records in order, a changelog that gets part of them, and what comes back."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

from ankusa.store import keys
from ankusa.store.tables import Tables
from schemas import records
from schemas.records import Topic
from streams.kafka.changelog import Entry
from streams.kafka.folding import PartitionFold
from streams.kafka.restoring import Restore, owner_entry, read_state
from streams.local.log import LocalLog

Record = tuple[Topic, int, int, bytes]
"""Topic, offset, log time, value."""


def recorded(log: LocalLog) -> list[Record]:
    """The records of an embedded log as the topics of partition 0 would hold them, in the order of their folding."""
    merged = sorted((offset, topic, at, value) for topic in Topic for offset, at, value in log.read(topic))
    return [
        (topic, offset, at, _pen(log, value) if topic is Topic.QUARANTINE else value)
        for offset, topic, at, value in merged
    ]


def _pen(log: LocalLog, value: bytes) -> bytes:
    """The body of a held hook is in the pen alone: of one that was purged since, nothing is told."""
    try:
        records.decode_purge(value)
    except records.DecodeError:
        held_bytes = records.msgspec.msgpack.decode(value)
        held = records.decode_held(held_bytes)
        stored = log.tables.database.get("pen", keys.pen_key(held.received_at, held.id))
        return records.encode_commit(0, [] if stored is None else [records.unframe_hook(stored)])
    return value


class Worker:
    """Owns one partition in its own directory, and sends what it folds to `changelog` when it is told to."""

    def __init__(self, path: Path, changelog: list[Entry], name: str, partition: int = 0) -> None:
        self.path = path
        self._changelog = changelog
        self._partition = partition
        self._lives = 0
        self._name = name
        self.emptied = False

    def start(self, chunk: int = 7) -> None:
        """Restore from the changelog, `chunk` entries at a time."""
        self._lives += 1
        owner = f"{self._name}-{self._lives}"
        restore = Restore(self.path, Tables, 0)
        while (start := restore.start) < len(self._changelog):
            following = min(start + chunk, len(self._changelog))
            self.emptied |= not restore.take(self._changelog[start:following], following)
        self.tables = restore.finish(owner)
        self.fold = PartitionFold(self._partition, self.tables)
        self._sent = read_state(self.tables).turn
        self._waiting = list(self.fold.unsent())
        self._opening: list[Entry] = [owner_entry(self._sent, owner)]

    def take(self, record: Record) -> None:
        topic, offset, at, value = record
        folded = self.fold.fold(topic, offset, at, value)
        if not folded.skipped:
            self._waiting.append((folded.turn, list(folded.entries)))

    def send(self, count: int, *, told: bool = True) -> None:
        """One transaction of up to `count` records. Whoever is not `told` dies before the broker's answer."""
        sent, self._waiting = self._waiting[:count], self._waiting[count:]
        if not sent:
            return
        self._changelog.extend(self._opening)
        self._opening = []
        for _, entries in sent:
            self._changelog.extend(entries)
        if told:
            self.fold.sent(sent[0][0], sent[-1][0], len(self._changelog), 0)

    def die(self, *, disk_lost: bool = False) -> None:
        self.tables.close()
        if disk_lost:
            shutil.rmtree(self.path)


def run(workers: Sequence[Worker], log: Sequence[Record], draw: Callable[[int], int], *, shuffled: bool) -> Worker:
    """Fold the whole log through lives of `workers`; `draw(n)` is a choice below n. The last one is left running.

    Topics keep their own order. Among each other they have that of the log, or, `shuffled`, any: as consumers do.
    """
    topics = [list(found) for found in _lines(log, shuffled)]
    places = [0] * len(topics)
    worker = workers[0]
    worker.start()
    while left := [line for line, records_ in enumerate(topics) if places[line] < len(records_)]:
        line = left[draw(len(left))]
        worker.take(topics[line][places[line]])
        places[line] += 1
        event = draw(6)
        if event == 1:
            worker.send(draw(4))
        elif event == 2:
            worker.send(draw(4), told=draw(3) == 0)
            worker.die(disk_lost=draw(4) == 0)
            worker = workers[draw(len(workers))]
            worker.start(1 + draw(9))
            # The group's offsets are at most what the changelog has: read again from anywhere before.
            places = [draw(1 + first_missing(worker, records_)) for records_ in topics]
    worker.send(len(log))
    return worker


def _lines(log: Sequence[Record], shuffled: bool) -> list[list[Record]]:
    """What is read in its own order: all of the log, or each topic of it."""
    if not shuffled:
        return [list(log)]
    return [[record for record in log if record[0] is topic] for topic in sorted({record[0] for record in log})]


def first_missing(worker: Worker, records_: Sequence[Record]) -> int:
    """The place of the first record that the worker's tables do not have."""
    for place, (topic, offset, _, _) in enumerate(records_):
        if offset > worker.fold.offset(topic):
            return place
    return len(records_)
