"""What the log says of a fleet's hooks: where each is, what its attempts came to, and who took its partition over.

Read by clients that belong to no group, so that reading disturbs nobody. Owns the reading and what follows from the
order of records; knows nothing of the sink.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from confluent_kafka import Consumer, TopicPartition
from msgspec import Struct

from schemas.records import (
    OutcomeBatch,
    OutcomeKind,
    Takeover,
    decode_commit,
    decode_envelope,
    decode_outcome_record,
    seq_of,
)
from streams.kafka.places import log_offset, partition_of
from streams.kafka.topics import TopicNames
from tests.kafka.folding import DEADLINE_S, Fleet

SETTLED = (OutcomeKind.DELIVERED, OutcomeKind.DEAD, OutcomeKind.DROPPED)
TAKES, TAKES_S = 2000, 0.2


class Change(Struct, frozen=True):
    """An owner of a partition begins. `place` is its offset in the partition's outcomes, `at` the broker's unix ms."""

    partition: int
    place: int
    at: int
    owner: str


class Places:
    """Where each hook is. `refresh` reads on; brokers may be away meanwhile."""

    def __init__(self, fleet: Fleet) -> None:
        self.seq_by_id: dict[str, int] = {}
        self._consumer = Consumer(
            {"bootstrap.servers": ",".join(fleet.config.kafka.brokers), "group.id": "nobody", "log_level": 0}
        )
        topic = TopicNames(fleet.config.kafka.prefix).hooks
        self._consumer.assign([TopicPartition(topic, number, 0) for number in range(fleet.partitions)])

    def refresh(self) -> None:
        """Read what is there by now, and no further: the load goes on."""
        messages = self._consumer.consume(TAKES, TAKES_S)
        while messages:
            for message in messages:
                value, partition, offset = message.value(), message.partition(), message.offset()
                if message.error() is not None or value is None:
                    continue
                assert partition is not None and offset is not None
                for index, (envelope, _) in enumerate(decode_commit(value)[1]):
                    self.seq_by_id[decode_envelope(envelope).id] = seq_of(log_offset(partition, offset), index)
            messages = self._consumer.consume(TAKES, TAKES_S) if len(messages) == TAKES else []

    def know(self, ids: Iterable[str], within_s: float = DEADLINE_S) -> None:
        """Read on until every one of `ids` is known."""
        deadline, ids = time.monotonic() + within_s, set(ids)
        while not ids <= self.seq_by_id.keys():
            assert time.monotonic() < deadline, f"{len(ids - self.seq_by_id.keys())} accepted hooks are not in the log"
            self.refresh()

    def partition(self, hook_id: str) -> int | None:
        seq = self.seq_by_id.get(hook_id)
        return None if seq is None else partition_of(seq)

    def close(self) -> None:
        self._consumer.close()


class Book(Struct):
    """The topic `outcomes`. `settled` is the first record that ended a row, by seq; `attempts` are numbers in the order
    of the log, by seq, `generations` beside them; `changes` are by partition, in order."""

    settled: dict[int, int]
    attempts: Mapping[int, Sequence[tuple[int, int]]]
    changes: Mapping[int, Sequence[Change]]

    def in_flight(self, change: Change, seqs: Iterable[int]) -> set[int]:
        """Those of `seqs`, of the change's partition, that nobody had settled in the log when its owner began."""
        return {seq for seq in seqs if self.settled.get(seq, change.place) >= change.place}

    def resets(self) -> list[int]:
        """Rows whose attempts did not go on where they were.

        An outcome that counts carries the generation that the one before it left, and the number that follows. What an
        owner of before says late, or a worker says again, is of an older one: at most once for each change of owner.
        """
        return [seq for seq, attempts in self.attempts.items() if not self._goes_on(seq, attempts)]

    def _goes_on(self, seq: int, attempts: Sequence[tuple[int, int]]) -> bool:
        number, stale, following = 0, 0, attempts[0][1]
        for attempt, generation in attempts:
            if generation < following:
                stale += 1
            elif attempt != number + 1:
                return False
            else:
                number, following = attempt, generation + 1
        return stale <= len(self.changes[partition_of(seq)])


def read_book(fleet: Fleet) -> Book:
    """Everything that is in `outcomes` now."""
    settled: dict[int, int] = {}
    attempts: defaultdict[int, list[tuple[int, int]]] = defaultdict(list)
    changes: defaultdict[int, list[Change]] = defaultdict(list)
    for record in fleet.read(fleet.names.outcomes):
        match decode_outcome_record(record.value):
            case Takeover(owner=owner):
                changes[record.partition].append(Change(record.partition, record.offset, record.timestamp, owner))
            case OutcomeBatch(items=items):
                for item in items:
                    if item.kind in SETTLED:
                        settled.setdefault(item.seq, record.offset)
                    if item.attempt:
                        attempts[item.seq].append((item.attempt, item.generation))
            case _:
                pass
    return Book(settled, attempts, changes)
