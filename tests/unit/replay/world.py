"""A node's log in a directory, with dead rows made as a dispatcher makes them: hooks committed, outcomes published.

Time stands still until a test moves it.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Collection, Iterable
from pathlib import Path
from typing import Any

from ankusa.core.pressure import Pressure
from ankusa.replay.answers import Started
from ankusa.replay.operator import Operator
from ankusa.replay.replayer import Replayer
from ankusa.store import keys
from schemas import records
from schemas.records import (
    Envelope,
    ErrorClass,
    Job,
    Outcome,
    OutcomeBatch,
    OutcomeKind,
    OutcomeRecord,
    Page,
    Row,
    RowState,
)
from streams.local.log import LocalLog
from streams.local.replay_host import LocalReplayHost

START = 1_700_000_000_000
CALM = Pressure(0, window_full=False)

Place = tuple[int, int]


class World:
    """One node. `wall` is its clock (unix ms), `pressure` what its dispatcher says."""

    def __init__(self, path: Path, wall: int = START) -> None:
        self.path = path
        self.wall = wall
        self.pressure: Pressure | None = CALM
        self._made = 0
        self._open()

    def _open(self) -> None:
        self.log = LocalLog(self.path, lambda: self.wall)
        self.host = LocalReplayHost(self.log, lambda: self.pressure, ("edge", "dispatch", "storage"))
        self.run_on(self.host)

    def run_on(self, host: Any) -> None:
        """A new replayer and operator, as after a restart, on this host (which may be one that fails)."""
        self.replayer = Replayer(host)
        self.operator = Operator(host, self.replayer.wake)

    def restart(self) -> None:
        self.close()
        self._open()

    def close(self) -> None:
        self.log.close()

    def crashed(self, path: Path) -> World:
        """A node that starts on the files as they are at this moment: what a kill leaves behind.

        For a store in its first run: its data is in the WAL alone, so no compaction changes files under the copy.
        """
        shutil.copytree(self.path, path)
        self.close()
        return World(path, self.wall)

    # -- rows -------------------------------------------------------------------

    async def commit(
        self, count: int = 1, tenant: str = "acme", source: str = "acme.orders", sinks: tuple[str, ...] = ("http",)
    ) -> list[str]:
        """Accepted hooks; their ids in order."""
        ids = []
        for first in range(0, count, 256):
            hooks = []
            for _ in range(min(256, count - first)):
                self._made += 1
                hook_id = f"00000000-0000-7000-8000-{self._made:012x}"
                ids.append(hook_id)
                envelope = Envelope(hook_id, source, tenant, self.wall, sinks, (), None, f"key-{self._made}")
                hooks.append((envelope, records.encode(envelope), b"body"))
            await self.log.commit(hooks, [])
        return ids

    async def dead(
        self,
        count: int = 1,
        tenant: str = "acme",
        source: str = "acme.orders",
        sinks: tuple[str, ...] = ("http",),
        error_class: ErrorClass = ErrorClass.TRANSIENT,
        died_at: int | None = None,
    ) -> list[str]:
        """Hooks whose rows all died at `died_at` (now); their ids."""
        if died_at is not None:
            self.wall = died_at
        ids = await self.commit(count, tenant, source, sinks)
        places = [(self.seq(hook_id), sink) for hook_id in ids for sink in range(len(sinks))]
        self.settle(places, OutcomeKind.DEAD, error_class)
        return ids

    def settle(
        self, places: Iterable[Place], kind: OutcomeKind, error_class: ErrorClass = ErrorClass.TRANSIENT
    ) -> None:
        """What a dispatcher publishes after one attempt at each of these pending rows."""
        outcomes = []
        for seq, sink in places:
            row = self.row(seq, sink)
            assert row is not None
            failed = kind is not OutcomeKind.DELIVERED
            outcomes.append(
                Outcome(
                    *(seq, sink, row.generation, kind, self.wall, self.wall),
                    attempt=row.attempts + (kind is not OutcomeKind.PARKED),
                    due_at=self.wall + 1000,
                    error="boom" if failed else None,
                    error_class=error_class if failed else None,
                )
            )
        for first in range(0, len(outcomes), 256):
            self.log.publish(OutcomeBatch(tuple(outcomes[first : first + 256])))

    def seq(self, hook_id: str) -> int:
        seq = self.log.tables.seq_of(hook_id)
        assert seq is not None
        return seq

    def row(self, seq: int, sink: int = 0) -> Row | None:
        return self.log.tables.row(seq, sink)

    def rows(self) -> dict[Place, Row]:
        """Every row of the store."""
        items = self.log.tables.database.items("rows", b"", b"\xff" * 11)
        found = {}
        for key, value in items:
            seq, sink = keys.split_row_key(key)
            found[seq, sink] = records.decode_row(value)
        return found

    def revived(self, job_id: str | None = None) -> list[Place]:
        """Pending rows that a replay (this one) put back, in seq order."""
        return [
            place
            for place, row in self.rows().items()
            if row.state is RowState.PENDING and row.replay_id is not None and job_id in (None, row.replay_id)
        ]

    def still_dead(self) -> list[Place]:
        return [place for place, row in self.rows().items() if row.state is RowState.DEAD]

    # -- replays ----------------------------------------------------------------

    async def start(self, **body: Any) -> Job:
        """A new dlq job, started and past the ms of its start."""
        started = await self.operator.start({"kind": "dlq"} | body)
        assert isinstance(started, Started) and started.created, started
        self.wall += 1
        return started.job

    def job(self, job_id: str) -> Job:
        found = self.host.job(job_id)
        assert found is not None
        return found

    def listed(self, tenants: Collection[str] | None = None) -> list[Job]:
        found = self.operator.list(tenants)
        assert isinstance(found, list), found
        return found

    async def patch(self, job: Job, **body: Any) -> Job:
        changed = await self.operator.update(job.id, body)
        assert isinstance(changed, Job), changed
        return changed

    async def tick(self, count: int = 1) -> None:
        """So many ticks, each in its time."""
        for _ in range(count):
            self.wall += 200
            await self.replayer.tick(self.wall)

    async def until(self, holds: Callable[[], bool], ticks: int = 200) -> int:
        """Tick until it holds; the number of ticks. Fails after `ticks`."""
        for count in range(1, ticks + 1):
            await self.tick()
            if holds():
                return count
        raise AssertionError(f"not within {ticks} ticks")


def pages(log: LocalLog) -> list[Page]:
    """Every page in the log, in order."""
    found: list[OutcomeRecord] = [
        records.decode_outcome_record(record) for _, _, record in log.read(records.Topic.OUTCOMES)
    ]
    return [record for record in found if isinstance(record, Page)]
