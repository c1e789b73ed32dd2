"""What the contract suite asks of a host under test: the same steps for an embedded node and, later, for others.

Everything is driven from outside: a test says what is committed, when time moves and when the node dies.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from msgspec import Struct

from ankusa.core.pressure import Pressure
from schemas.config import Retry
from schemas.records import Attempt, Job, Lane, Row
from tests.contract.blobs import ScriptedBlobs

STARTS_AT = 1_700_000_000_000
"""Where a host's clock starts, unix ms."""

STEADY = Retry(base_ms=1000, max_ms=60_000, jitter=False)
"""A policy whose delays a test can name: 1 s, 2 s, 4 s, ... to a minute."""


class Hook(Struct, frozen=True):
    """A hook to commit. `sinks` are the types its source had when it was accepted."""

    id: str
    source_id: str = "orders"
    tenant_id: str = "acme"
    sinks: tuple[str, ...] = ("http",)
    body: bytes = b"{}"
    ordering_keys: tuple[str | None, ...] = ()


def hooks(count: int, *, prefix: str = "hook", **fields: Any) -> list[Hook]:
    """`count` hooks with ids `prefix-0000` on."""
    return [Hook(f"{prefix}-{number:04d}", **fields) for number in range(count)]


class Host(Protocol):
    """One node: its log, tables and dispatcher, with sources and sinks that the test supplies."""

    @property
    def at(self) -> int:
        """The host's time, unix ms."""

    @property
    def blobs(self) -> ScriptedBlobs:
        """Its claim check's store, which outlives a crash."""

    @property
    def partitions(self) -> int:
        """How many partitions its rows are in. One commit's are in one, but for hooks of lanes."""

    @property
    def turns(self) -> int:
        """Turns its dispatcher has taken since it started."""

    def source(self, name: str, *sinks: Any, retry: Retry = STEADY) -> None:
        """Make or replace a source with these sinks, in this order."""

    def remove_source(self, name: str) -> None: ...

    def break_source(self, name: str) -> None:
        """A source that raises when it is asked for, until it is replaced."""

    def sources_answer(self, answer: bool) -> None:
        """Whether the source store can answer."""

    def commit(self, hooks: Sequence[Hook]) -> None:
        """Accept hooks, as one commit, and return once they are durable, with what follows at once started."""

    def advance(self, ms: int) -> None:
        """Let time pass and everything due in it happen."""

    def step_clock(self, ms: int) -> None:
        """The node's wall clock steps, and is before the log's last record where it steps back."""

    def settle(self) -> None:
        """Let everything happen that needs no more than an outcome buffer's few milliseconds."""

    def tick(self) -> int: ...

    def dead_letter_source(self, source_id: str, within_ms: int = 20_000) -> int | None:
        """Kill the source's rows that wait; how many died, None for unavailable."""

    def rows(self, hook_id: str) -> dict[int, Row]:
        """A hook's rows that are not delivered, by sink index."""

    def attempts(self, hook_id: str, sink: int = 0) -> list[Attempt]: ...

    def lane(self, ordering_key: str) -> Lane | None:
        """The lane of this key at the first sink of tenant acme's source orders."""

    def lose_row(self, hook_id: str) -> None:
        """Remove a hook's stored rows and nothing else, as no code of ours does."""

    def redeem(self, reference: str) -> bytes:
        """The body that the claim check stored behind a reference."""

    def sweep_packs(self, retention_days: int) -> None:
        """One pass of the claim check's retention."""

    def sweep_lanes(self) -> None:
        """One pass of the healing sweep."""

    def counts(self) -> tuple[int, int, int]:
        """Rows pending live, pending replayed, dead, as the host counts them."""

    def scanned_counts(self) -> tuple[int, int, int]:
        """The same, counted by reading every row."""

    def pressure(self) -> Pressure | None: ...

    def start_job(self, job_id: str) -> None:
        """A replay job that moves nothing by itself."""

    def revive(self, job_id: str, *hook_ids: str) -> None:
        """One page of the job: the dead rows of these hooks put back."""

    def job(self, job_id: str) -> Job: ...

    def reconfigure(self, **dispatch: Any) -> None:
        """Other dispatch settings, while it runs."""

    def corrupt(self, hook_id: str) -> None:
        """Make the stored bytes of a hook undecodable."""

    def lose(self, hook_id: str) -> None:
        """Remove a stored hook, its rows left."""

    def corrupt_row(self, hook_id: str) -> None:
        """Make the stored row of a hook's first sink undecodable."""

    def orphan_index_entry(self, hook_id: str) -> None:
        """Remove the row of a hook's first sink, its index entry left."""

    def refuse_row_reads(self, times: int, *hook_ids: str) -> None:
        """A store that cannot read the rows of these hooks, so many times."""

    def refuse_writes(self, refuse: bool) -> None:
        """A store that takes no writes, and recovers when it does again."""

    def refuse_writes_after_taking_them(self) -> None:
        """A store that fails after a write has reached it, until `refuse_writes(False)`."""

    def refuse_reads(self, *hook_ids: str) -> None:
        """A store that cannot read these hooks now; without any, one that can read all again."""

    def crash(self) -> None:
        """Die without a word and start again on what was on disk."""

    def restart(self, grace_ms: int = 1000) -> None:
        """Stop in order and start again."""

    def close(self) -> None: ...
