"""A fleet under test: nodes that share partitions, and a log that refuses what a test says.

Every record that the log takes is folded at once, by whoever owns its partition.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

from ankusa.core.pressure import Pressure
from ankusa.replay.operator import Operator
from schemas import records
from schemas.records import Job, Outcome, OutcomeBatch, OutcomeKind, Topic
from streams.kafka.fleet_log import FleetLog
from streams.kafka.log_producer import Delivered, LogProducer
from streams.kafka.replay_host import NodeReplays
from tests.unit.kafka.records import Partition, hooks
from tests.unit.store.entries import AT

PARTITIONS = 4


class _Producer:
    unreported = 0

    def __init__(self, log: Log) -> None:
        self._log = log

    def send(self, topic: str, partition: int, value: bytes | None, key: Any, at: int, delivered: Delivered) -> None:
        assert topic == "replays"
        self._log.sent.append((partition, key, value))
        asyncio.get_running_loop().call_soon(self._log.take, partition, key, value, delivered)


class Log:
    """The partitions. Those in `refuses` take nothing, and those in `silent` do not answer before `answer`."""

    def __init__(self, folder: Path) -> None:
        self.at = AT
        self.refuses: set[int] = set()
        self.silent: set[int] = set()
        self.late: list[tuple[int, bytes, bytes | None, Delivered]] = []
        self.sent: list[tuple[int, bytes, bytes | None]] = []
        self.partitions = [Partition(folder / str(number), number) for number in range(PARTITIONS)]
        self.replays: list[list[tuple[bytes, bytes | None]]] = [[] for _ in range(PARTITIONS)]
        self.nodes: list[Node] = []

    def answer(self) -> None:
        """Take what came to silent partitions, as a broker that leads them at last."""
        self.silent = set()
        late, self.late = self.late, []
        for each in late:
            self.take(*each)

    def take(self, number: int, key: bytes, value: bytes | None, delivered: Delivered) -> None:
        if number in self.silent:
            self.late.append((number, key, value, delivered))
            return
        if number in self.refuses:
            delivered(None, f"replays[{number}]: refused")
            return
        offset = self.partitions[number].offsets[Topic.REPLAYS]
        self.replays[number].append((key, value))
        self.partitions[number].add(Topic.REPLAYS, value, self.at)
        delivered(offset, "")
        for node in self.nodes:
            node.fleet.folded(number, Topic.REPLAYS)

    def dead(self, number: int, name: str) -> None:
        """A hook of a partition whose row is dead."""
        partition = self.partitions[number]
        partition.add(Topic.HOOKS, hooks(name), self.at)
        died = Outcome(partition.seq(name), 0, 0, OutcomeKind.DEAD, self.at, self.at, 1, error="why")
        partition.add(Topic.OUTCOMES, records.encode(OutcomeBatch((died,))), self.at)

    def part(self, number: int, job_id: str) -> Job:
        job = self.partitions[number].tables.job(job_id)
        assert job is not None, f"partition {number} has no job {job_id}"
        return job

    def having(self, job_id: str) -> list[int]:
        """The partitions that have a part of a job."""
        return [partition.number for partition in self.partitions if partition.tables.job(job_id) is not None]

    def close(self) -> None:
        for partition in self.partitions:
            partition.tables.close()


class Node:
    """A worker that owns some of the partitions."""

    def __init__(self, log: Log, owns: Sequence[int]) -> None:
        self.fleet = FleetLog(cast(LogProducer, _Producer(log)), {Topic.REPLAYS: "replays"}, lambda: log.at)
        for number in owns:
            self.fleet.add(log.partitions[number].fold)
        self.host = NodeReplays(self.fleet, PARTITIONS, lambda: Pressure(0, window_full=False))
        self.operator = Operator(self.host)
        log.nodes.append(self)
