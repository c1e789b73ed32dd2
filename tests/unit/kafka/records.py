"""A partition under test: records as its topics hold them, folded one after another."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import msgspec

from ankusa.store.tables import Tables
from schemas import records
from schemas.records import Held, Job, JobStart, JobState, Topic
from streams.kafka.folding import Folded, PartitionFold
from tests.unit.store.entries import AT, held, hook

PARTITION = 7


def commit(*hooks: tuple[Any, bytes, bytes]) -> bytes:
    """A record of `hooks`, or of `quarantine`."""
    return records.encode_commit(AT, [(entry_bytes, body) for _, entry_bytes, body in hooks])


def hooks(*names: str, **details: Any) -> bytes:
    return commit(*(hook(name, **details) for name in names))


def holds(*names: str) -> tuple[bytes, list[Held]]:
    entries = [held(name) for name in names]
    return commit(*entries), [entry for entry, _, _ in entries]


def job_start(name: str = "job-1", **changes: object) -> bytes:
    """A record of `replays`."""
    made = Job(
        id=name,
        kind="dlq",
        state=JobState.RUNNING,
        filter={},
        rate=10,
        max_lag_ms=1000,
        created_at=AT,
        updated_at=AT,
    )
    return records.encode(JobStart(msgspec.structs.replace(made, **changes)))


class Partition:
    """Partition 7 at `path`, with an offset for each topic."""

    def __init__(self, path: Path, number: int = PARTITION) -> None:
        self.path = path
        self.number = number
        self.offsets: Counter[Topic] = Counter()
        self.open()

    def open(self) -> None:
        self.tables = Tables(self.path)
        self.fold = PartitionFold(self.number, self.tables)

    def reopen(self) -> None:
        self.tables.close()
        self.open()

    def add(self, topic: Topic, value: bytes | None, at: int = AT) -> Folded:
        folded = self.fold.fold(topic, self.offsets[topic], at, value)
        self.offsets[topic] += 1
        return folded

    def seq(self, hook_id: str) -> int:
        seq = self.tables.seq_of(hook_id)
        assert seq is not None, hook_id
        return seq
