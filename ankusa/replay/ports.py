"""What replays ask of a host: its jobs, its dead rows, a log to publish to, and the pressure of live traffic."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from enum import Enum, auto
from typing import Protocol

from ankusa.core.pressure import Pressure
from schemas.records import Job, JobPatch, JobRecord, Page, Row


class Unreadable(Enum):
    """Stands for a row whose bytes do not decode."""

    UNREADABLE = auto()


class ReplayHost(Protocol):
    """One node's part of the log and its tables. Everything that reads or writes may raise StoreError."""

    @property
    def roles(self) -> Collection[str]: ...

    def now(self) -> int:
        """Log time, unix ms: no record appended later has an earlier one."""

    def pressure(self) -> Pressure | None:
        """None while nobody can say."""

    def jobs(self) -> list[Job]:
        """Every kept job, newest first."""

    def job(self, job_id: str) -> Job | None: ...

    def dead_keys(self, start: bytes, end: bytes, limit: int) -> list[bytes]:
        """The first `limit` keys of the dead index in [start, end), oldest death first. Holds nothing open."""

    def dead_keys_of(self, hook_id: str) -> list[bytes]:
        """The dead index keys of one hook, in order; empty for a hook that is not stored. A row that does not decode
        is left out: nobody knows that it is dead."""

    def rows(self, places: Sequence[tuple[int, int]]) -> list[Row | Unreadable | None]:
        """The rows at `(seq, sink)`, in order; None where there is none."""

    def dead_counts(self) -> Mapping[str, int]:
        """Dead rows by sink key text, without a scan."""

    async def command(self, record: JobRecord) -> None:
        """Append and fold a replay command; returns when it is durable. It is folded before the first suspension."""


class PagingHost(ReplayHost, Protocol):
    """A host whose rows a replayer moves: pages are published where their rows are."""

    async def publish(self, page: Page) -> None:
        """Append and fold a page, whole or not at all; returns when it is folded. Not durable by itself: after a crash
        the log ends with some page, and the job goes on from there."""


class OperatedHost(ReplayHost, Protocol):
    """A host that operators speak to. A job may have parts beside those of this node; where it is in one place, there
    is nothing to do for these."""

    def begun(self) -> list[Job]:
        """Jobs that were started a short while ago and not everywhere, and of which this node has no part."""

    async def complete(self, job: Job) -> None:
        """Have a part of a job, kept or begun, wherever one belongs; durably, as a command."""

    async def pass_on(self, patch: JobPatch) -> None:
        """Give a patch of a job that is finished here to all parts elsewhere, which may not be; durably."""
