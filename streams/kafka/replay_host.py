"""The Kafka hosts of replays: one partition's, where a job runs, and a node's, which operators speak to.

A job is one in the fleet and a part in each partition: every partition has its record, with a cursor, counters and a
share of the rate of its own, and its owner runs that part. A command goes to every partition, owned or not; what a node
shows of a job is the sum over the partitions that it owns. One that a partition refused reaches it when the operator
sends it again. Owns who gets what; what a part is, `job_parts.py`, and pages and rules, `ankusa/replay`, are not here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
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
from streams.kafka.fleet_log import ANSWER_S, FleetLog, UnansweredError
from streams.kafka.job_parts import part_of, started_again
from streams.kafka.job_view import whole_job
from streams.kafka.places import partition_of

ROLES = frozenset({"dispatch"})
"""What the rules of replays call a node that delivers. Whoever runs these hosts is a worker, and does."""

REMEMBERED_MS = 600_000
"""How long a start that a partition refused is remembered by a node that has no part of the job: for a client that
tries again. Later the job may have ended elsewhere, and who asks for the same wants another one."""


class PartitionReplays(StoreReplays):
    """Implements `ankusa.replay.ports.PagingHost` for the part of jobs in one owned partition."""

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
    """Implements `ankusa.replay.ports.OperatedHost` for a node: reads what it owns, commands the fleet of `partitions`
    partitions."""

    roles: Collection[str] = ROLES

    def __init__(self, fleet: FleetLog, partitions: int, pressure: Callable[[], Pressure | None]) -> None:
        self._fleet = fleet
        self._partitions = partitions
        self._pressure = pressure
        self._refused: dict[str, JobStart] = {}

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
        found = self._owned(job_id)
        return whole_job(list(found.values())) if found else None

    def _owned(self, job_id: str) -> dict[int, Job]:
        """The parts of a job that this node has."""
        return {number: job for number, part in self._parts().items() if (job := part.job(job_id)) is not None}

    def begun(self) -> list[Job]:
        oldest = self.now() - REMEMBERED_MS
        self._refused = {name: start for name, start in self._refused.items() if start.job.created_at >= oldest}
        return [start.job for name, start in self._refused.items() if not self._owned(name)]

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
        """Returns when every partition's log has it, and the partitions of this node have folded it. Where one refuses
        it, or does not answer, all others are given it first. A start that some partition has, or may yet get, is
        remembered: the next one is that job's."""
        counted = isinstance(record, JobStart) and record.job.total is not None
        refused = await self._send_all(record, range(self._partitions), counted=counted)
        arrives = len(refused) < self._partitions or any(isinstance(error, UnansweredError) for error in refused)
        if refused and arrives and isinstance(record, JobStart):
            self._refused[record.job.id] = record
        _raise_first(refused)

    async def complete(self, job: Job) -> None:
        parts = self._owned(job.id)
        start = started_again(parts, self._partitions, self.now()) if parts else self._refused.get(job.id)
        if start is not None:
            missing = [number for number in range(self._partitions) if number not in parts]
            _raise_first(await self._send_all(start, missing, counted=True))
        self._refused.pop(job.id, None)

    async def pass_on(self, record: JobPatch) -> None:
        owned = self._parts()
        _raise_first(await self._send_all(record, [n for n in range(self._partitions) if n not in owned]))

    async def _send_all(self, record: JobRecord, numbers: Iterable[int], *, counted: bool = False) -> list[StoreError]:
        """To each of `numbers` its part; what those said that refused it. `counted` starts know how many rows they have
        to move, where this node can tell."""
        parts = {number: part_of(record, number, self._partitions) for number in numbers}
        for number, part in parts.items():
            if isinstance(part, JobStart):
                parts[number] = JobStart(replace(part.job, total=await self._total(part, number) if counted else None))
        sent = await asyncio.gather(*(self._send(*each) for each in parts.items()), return_exceptions=True)
        for error in sent:
            if error is not None and not isinstance(error, StoreError):
                raise error
        return [error for error in sent if isinstance(error, StoreError)]

    async def _total(self, start: JobStart, number: int) -> int | None:
        if number not in self._fleet.partitions:
            return None
        part = PartitionReplays(self._fleet, number, self._pressure)
        return await count(part, DlqFilter(start.job.filter, start.job.created_at))

    async def _send(self, number: int, record: JobRecord) -> None:
        owned = number in self._fleet.partitions
        send = self._fleet.append if owned else self._fleet.deliver
        await send(Topic.REPLAYS, number, records.encode(record), command_key(record), ANSWER_S)


def _raise_first(refused: Sequence[StoreError]) -> None:
    for error in refused:
        raise error


def command_key(record: JobRecord) -> bytes:
    """Of its own for each command of a job: `replays` is compacted, and a worker that was away must miss none."""
    if isinstance(record, JobStart):
        return f"{record.job.id}/start/{record.job.updated_at}".encode()
    kind = "patch" if isinstance(record, JobPatch) else "drop"
    return f"{record.id}/{kind}/{record.at}".encode()
