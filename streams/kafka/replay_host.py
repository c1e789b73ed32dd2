"""The Kafka hosts of replays: one partition's, where a job runs, and a node's, which operators speak to.

A job is one in the fleet and a part in each partition: every partition has its record, with a cursor, counters and a
share of the rate of its own, and its owner runs that part. A command goes to every partition, owned or not; what a node
shows of a job is the sum over the partitions that it owns. Owns those parts and sums; pages and rules are
`ankusa/replay`'s.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from heapq import merge
from itertools import islice

from msgspec.structs import replace

from ankusa.core.pressure import Pressure
from ankusa.replay.dlq import DlqFilter
from ankusa.replay.plan import count
from ankusa.replay.ports import Unreadable
from ankusa.replay.reading import StoreReplays
from ankusa.store.errors import StoreError
from ankusa.store.tables import Tables
from schemas import records
from schemas.records import Job, JobPatch, JobRecord, JobStart, Page, Row, Topic
from streams.kafka.fleet_log import FleetLog
from streams.kafka.job_view import whole_job
from streams.kafka.places import partition_of

ROLES = frozenset({"dispatch"})
"""What the rules of replays call a node that delivers. Whoever runs these hosts is a worker, and does."""


class PartitionReplays(StoreReplays):
    """Implements `ankusa.replay.ports.ReplayHost` for the part of jobs in one owned partition."""

    roles: Collection[str] = ROLES

    def __init__(self, fleet: FleetLog, number: int, pressure: Callable[[], Pressure | None]) -> None:
        self._fleet = fleet
        self._number = number
        self._pressure = pressure

    def now(self) -> int:
        return self._fleet.now()

    def pressure(self) -> Pressure | None:
        return self._pressure()

    def _tables(self) -> Tables:
        tables = self._fleet.tables(self._number)
        if tables is None:
            raise StoreError(f"partition {self._number} is not this node's any more")
        return tables

    async def command(self, record: JobRecord) -> None:
        """Of this partition's part alone: what the replayer finds, it finds here."""
        self._tables()
        await self._fleet.append(Topic.REPLAYS, self._number, records.encode(record), command_key(record))

    async def publish(self, page: Page) -> None:
        """The page is refused by the fold when somebody else has owned the partition since its rows were read."""
        partition = self._fleet.partitions.get(self._number)
        if partition is None:
            raise StoreError(f"partition {self._number} is not this node's any more")
        value = records.encode(replace(page, epoch=partition.epoch))
        await self._fleet.append(Topic.OUTCOMES, self._number, value)


class NodeReplays:
    """Implements `ankusa.replay.ports.ReplayHost` for a node: reads what it owns, commands the fleet of `partitions`
    partitions."""

    roles: Collection[str] = ROLES

    def __init__(self, fleet: FleetLog, partitions: int, pressure: Callable[[], Pressure | None]) -> None:
        self._fleet = fleet
        self._partitions = partitions
        self._pressure = pressure

    def now(self) -> int:
        return self._fleet.now()

    def pressure(self) -> Pressure | None:
        return self._pressure()

    def _parts(self) -> dict[int, PartitionReplays]:
        """Raises StoreError while this node owns nothing: an empty list must not mean that."""
        numbers = sorted(self._fleet.partitions)
        if not numbers:
            raise StoreError("this node owns no partition now")
        return {number: PartitionReplays(self._fleet, number, self._pressure) for number in numbers}

    # -- reading: the sum of what is owned --------------------------------------------

    def jobs(self) -> list[Job]:
        found: dict[str, list[Job]] = {}
        for part in self._parts().values():
            for job in part.jobs():
                found.setdefault(job.id, []).append(job)
        whole = [whole_job(parts) for parts in found.values()]
        return sorted(whole, key=lambda job: (job.created_at, job.sequence), reverse=True)

    def job(self, job_id: str) -> Job | None:
        found = [job for part in self._parts().values() if (job := part.job(job_id)) is not None]
        return whole_job(found) if found else None

    def dead_keys(self, start: bytes, end: bytes, limit: int) -> list[bytes]:
        return list(islice(merge(*(part.dead_keys(start, end, limit) for part in self._parts().values())), limit))

    def dead_keys_of(self, hook_id: str) -> list[bytes]:
        return [key for part in self._parts().values() for key in part.dead_keys_of(hook_id)]

    def rows(self, places: Sequence[tuple[int, int]]) -> list[Row | Unreadable | None]:
        parts = self._parts()
        found: dict[tuple[int, int], Row | Unreadable | None] = {}
        for number, part in parts.items():
            mine = [place for place in places if partition_of(place[0]) == number]
            found.update(zip(mine, part.rows(mine), strict=True))
        return [found.get(place) for place in places]

    def dead_counts(self) -> Mapping[str, int]:
        total: dict[str, int] = {}
        for part in self._parts().values():
            for key, dead in part.dead_counts().items():
                total[key] = total.get(key, 0) + dead
        return total

    # -- commands: to every partition ---------------------------------------------------

    async def command(self, record: JobRecord) -> None:
        """Returns when every partition's log has it, and the partitions of this node have folded it. Sent again after
        a refusal it does nothing twice."""
        parts = {number: await self._part(record, number) for number in range(self._partitions)}
        await asyncio.gather(*(self._send(number, part) for number, part in parts.items()))

    async def _part(self, record: JobRecord, number: int) -> JobRecord:
        """A partition's part: its share of the rate, and how many rows it has to move, where this node can tell."""
        if isinstance(record, JobStart):
            total = None
            if number in self._fleet.partitions and record.job.total is not None:
                part = PartitionReplays(self._fleet, number, self._pressure)
                total = await count(part, DlqFilter(record.job.filter, record.job.created_at))
            return JobStart(replace(record.job, rate=share(record.job.rate, number, self._partitions), total=total))
        if isinstance(record, JobPatch) and record.rate is not None:
            return replace(record, rate=share(record.rate, number, self._partitions))
        return record

    async def _send(self, number: int, record: JobRecord) -> None:
        owned = number in self._fleet.partitions
        send = self._fleet.append if owned else self._fleet.deliver
        await send(Topic.REPLAYS, number, records.encode(record), command_key(record))


def share(rate: int, number: int, partitions: int) -> int:
    """A partition's share of a job's rate; together they are the rate, or one a partition where that is more."""
    return max(1, rate // partitions + (number < rate % partitions))


def command_key(record: JobRecord) -> bytes:
    """Of its own for each command of a job: `replays` is compacted, and a worker that was away must miss none."""
    if isinstance(record, JobStart):
        return f"{record.job.id}/start".encode()
    kind = "patch" if isinstance(record, JobPatch) else "drop"
    return f"{record.id}/{kind}/{record.at}".encode()
