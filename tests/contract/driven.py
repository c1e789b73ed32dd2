"""A node driven by a test in virtual time: what the hosts under the contract suite have in common.

Owns the driving, the looking and the breaking of what every host has: tables, a dispatcher, sources, sinks and a claim
check. A host adds its log: how it opens, what becomes of a commit, and how its store dies.
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from ankusa.claim_check.retention import PackHost, Retention
from ankusa.claim_check.stats import ClaimCheckStats
from ankusa.core.pressure import Pressure
from ankusa.dispatch.claims import Claim
from ankusa.dispatch.dispatcher import Dispatcher
from ankusa.store import keys
from ankusa.store.errors import StoreError
from ankusa.store.tables import Tables
from schemas import records
from schemas.config import Dispatch, Retry
from schemas.records import (
    Attempt,
    Envelope,
    Job,
    JobRecord,
    JobStart,
    JobState,
    Lane,
    Page,
    Revival,
    Row,
    RowState,
)
from streams.kafka.job_view import whole_job
from tests.contract.blobs import ScriptedBlobs
from tests.contract.host import STARTS_AT, STEADY, Hook
from tests.contract.sources import FakeSources
from tests.contract.virtual_time import VirtualLoop

SETTLE_MS = 25
"""More than the outcome buffer's 10 ms, twice, for what an outcome makes possible."""

Entry = tuple[Envelope, bytes, bytes]


class DrivenHost(ABC):
    """Implements `tests.contract.host.Host` but for `crash`, `refuse_writes`, `refuse_writes_after_taking_them` and
    `sweep_lanes`."""

    dispatcher: Dispatcher
    dispatch_host: Any

    def __init__(self, folder: Path, **dispatch: Any) -> None:
        self._folder = folder
        self._life = 0
        self._pack_max_bytes = dispatch.pop("pack_max_bytes", 1 << 24)
        self._settings = Dispatch(**{"sink_concurrency": None, "breaker_failures": 0, **dispatch})
        self.blobs = ScriptedBlobs()
        self._sources = FakeSources()
        self._elapsed_ms = 0.0
        self._stepped_ms = 0
        self.turns = 0
        self._open()

    # -- what a host adds -----------------------------------------------------------

    @abstractmethod
    async def _start(self) -> None:
        """Open the log on what is on disk, and a dispatcher on it, which is woken."""

    @abstractmethod
    def _busy(self) -> bool:
        """Whether something outside the loop owes an answer, for which time stands still."""

    @property
    @abstractmethod
    def stores(self) -> Sequence[Tables]:
        """The tables of all its partitions."""

    @abstractmethod
    async def _commit(self, entries: list[Entry]) -> None:
        """Accept hooks as one commit."""

    @abstractmethod
    async def _command(self, record: JobRecord) -> None: ...
    @abstractmethod
    async def _page(self, page: Page) -> None:
        """Publish a page, whose rows are of one store."""

    @abstractmethod
    def _close_log(self) -> None:
        """Let go of the store; nothing of the node runs any more."""

    @property
    def partitions(self) -> int:
        return len(self.stores)

    # -- lives ------------------------------------------------------------------

    def _open(self) -> None:
        self.loop = VirtualLoop(self._busy)
        self.loop.now_ms = self._elapsed_ms
        self.loop.run(self._start())
        self.turns = 0
        self.settle()

    def _count_turns(self) -> None:
        scan = self.dispatcher.claims.scan

        def counted(at: int) -> Iterator[Claim]:
            self.turns += 1
            return scan(at)

        self.dispatcher.claims.scan = counted  # type: ignore[method-assign]

    @property
    def _store(self) -> Path:
        return self._folder / str(self._life)

    def crash(self) -> None:
        copy_store(self._store, self._folder / str(self._life + 1))
        self.close()
        self._life += 1
        self._open()

    def restart(self, grace_ms: int = 1000) -> None:
        self.loop.run(self.dispatcher.stop(grace_ms))
        self.close()
        self._open()

    def close(self) -> None:
        self._elapsed_ms = self.loop.now_ms
        # What is cancelled now must not make room for more deliveries.
        self.dispatcher._stopped = self.dispatcher.attempts.stopped = True
        tasks = asyncio.all_tasks(self.loop)
        for task in tasks:
            task.cancel()
        if tasks:
            self.loop.run(asyncio.wait(tasks, timeout=0.001))
        self._close_log()
        self.loop.close()

    # -- driving ------------------------------------------------------------------

    @property
    def at(self) -> int:
        return STARTS_AT + round(self.loop.now_ms) + self._stepped_ms

    def step_clock(self, ms: int) -> None:
        self._stepped_ms += ms

    def advance(self, ms: int) -> None:
        self.loop.advance(ms)

    def settle(self) -> None:
        self.loop.advance(SETTLE_MS)

    def tick(self) -> int:
        settled: int = self.loop.run(self.dispatcher.tick())
        return settled

    def source(self, name: str, *sinks: Any, retry: Retry = STEADY) -> None:
        self._sources.put(name, *sinks, retry=retry)

    def remove_source(self, name: str) -> None:
        self._sources.remove(name)

    def break_source(self, name: str) -> None:
        self._sources.broken.add(name)

    def sources_answer(self, answer: bool) -> None:
        self._sources.answer = answer

    def commit(self, hooks: Sequence[Hook]) -> None:
        for start in range(0, len(hooks), 256):
            self.loop.run(self._commit([self._entry(hook) for hook in hooks[start : start + 256]]))
        self.loop.advance(0)

    def _entry(self, hook: Hook) -> Entry:
        envelope = Envelope(
            hook.id,
            hook.source_id,
            hook.tenant_id,
            self.at,
            hook.sinks,
            (),
            "application/json",
            hook.id,
            ordering_keys=hook.ordering_keys,
        )
        return envelope, records.encode(envelope), hook.body

    def reconfigure(self, **dispatch: Any) -> None:
        self._settings = msgspec.structs.replace(self._settings, **dispatch)
        self.dispatcher.reconfigure(self._settings)

    def dead_letter_source(self, source_id: str, within_ms: int = 20_000) -> int | None:
        count: int | None = self.loop.run(self.dispatcher.dead_letter_source(source_id, within_ms))
        return count

    # -- looking ------------------------------------------------------------------

    def _place(self, hook_id: str) -> tuple[Tables, int]:
        """The store that has a hook, and its seq."""
        found = [(tables, seq) for tables in self.stores if (seq := tables.seq_of(hook_id)) is not None]
        assert len(found) == 1, hook_id
        return found[0]

    def _seq(self, hook_id: str) -> int:
        return self._place(hook_id)[1]

    def rows(self, hook_id: str) -> dict[int, Row]:
        tables, seq = self._place(hook_id)
        return dict(tables.rows_of(seq))

    def attempts(self, hook_id: str, sink: int = 0) -> list[Attempt]:
        tables, seq = self._place(hook_id)
        return [line for index, _, line in tables.attempts_of(seq) if index == sink]

    def lane(self, ordering_key: str) -> Lane | None:
        key = records.lane_key("acme", "orders", 0, "http", ordering_key)
        return next((lane for tables in self.stores if (lane := tables.lane(key)) is not None), None)

    def lose_row(self, hook_id: str) -> None:
        tables, seq = self._place(hook_id)
        database = tables.database
        batch = database.batch()
        for sink, row in tables.rows_of(seq):
            batch.delete(keys.row_key(seq, sink), database.handles["rows"])
            key = keys.due_key(keys.LIVE, row.tenant_id, row.at, seq, sink)
            batch.delete(key, database.handles["due"])
        database.write(batch)
        tables.recent.forget(seq)

    def redeem(self, reference: str) -> bytes:
        body: bytes = self.loop.run(self.blobs.redeem(reference))
        return body

    @abstractmethod
    def _pack_host(self) -> PackHost: ...

    def sweep_packs(self, retention_days: int) -> None:
        retention = Retention(self.blobs, self._pack_host(), retention_days, ClaimCheckStats())
        self.loop.run(retention.sweep())
        self.settle()

    def counts(self) -> tuple[int, int, int]:
        live, replayed, dead = zip(*(tables.counts.total() for tables in self.stores), strict=True)
        return sum(live), sum(replayed), sum(dead)

    def scanned_counts(self) -> tuple[int, int, int]:
        live = replayed = dead = 0
        stored = [value for tables in self.stores for _, value in tables.database.items("rows", b"", b"\xff")]
        for row in map(records.decode_row, stored):
            dead += row.state is RowState.DEAD
            replayed += row.state is RowState.PENDING and row.replay_id is not None
            live += row.state is RowState.PENDING and row.replay_id is None
        return live, replayed, dead

    def pressure(self) -> Pressure | None:
        return self.dispatcher.pressure()

    # -- replays ------------------------------------------------------------------

    def start_job(self, job_id: str) -> None:
        job = Job(
            id=job_id,
            kind="dlq",
            state=JobState.RUNNING,
            filter={},
            rate=1000,
            max_lag_ms=2000,
            created_at=self.at,
            updated_at=self.at,
        )
        self.loop.run(self._command(JobStart(job)))

    def revive(self, job_id: str, *hook_ids: str) -> None:
        by_store: dict[int, list[Revival]] = {}
        for hook_id in hook_ids:
            tables, seq = self._place(hook_id)
            found = [Revival(seq, sink, row.generation) for sink, row in tables.rows_of(seq)]
            by_store.setdefault(id(tables), []).extend(found)
        for revivals in by_store.values():
            self.loop.run(self._page(Page(job_id, self.at, b"cursor", len(revivals), 0, tuple(revivals))))

    def job(self, job_id: str) -> Job:
        found = [job for tables in self.stores if (job := tables.job(job_id)) is not None]
        assert len(found) == len(self.stores)
        return whole_job(found)

    # -- breaking things ------------------------------------------------------------

    def corrupt(self, hook_id: str) -> None:
        self._put_hook(hook_id, b"\x00\x00\x00\x02\xc1\xc1")

    def lose(self, hook_id: str) -> None:
        self._put_hook(hook_id, None)

    def _put_hook(self, hook_id: str, stored: bytes | None) -> None:
        tables, seq = self._place(hook_id)
        database = tables.database
        batch = database.batch()
        if stored is None:
            batch.delete(keys.u64(seq), database.handles["hooks"])
        else:
            batch.put(keys.u64(seq), stored, database.handles["hooks"])
        database.write(batch)
        tables.recent.forget(seq)

    def corrupt_row(self, hook_id: str) -> None:
        self._put_row(hook_id, b"\xc1")

    def orphan_index_entry(self, hook_id: str) -> None:
        self._put_row(hook_id, None)

    def _put_row(self, hook_id: str, stored: bytes | None) -> None:
        tables, seq = self._place(hook_id)
        database = tables.database
        batch, key = database.batch(), keys.row_key(seq, 0)
        if stored is None:
            batch.delete(key, database.handles["rows"])
        else:
            batch.put(key, stored, database.handles["rows"])
        database.write(batch)
        tables.recent.forget(seq)

    def refuse_row_reads(self, times: int, *hook_ids: str) -> None:
        host, left, refused = self.dispatch_host, [times], {self._seq(hook_id) for hook_id in hook_ids}

        def rows(places: list[tuple[int, int]]) -> Sequence[Row | None]:
            if left[0] > 0 and any(seq in refused for seq, _ in places):
                left[0] -= 1
                raise StoreError("Corruption: block checksum mismatch")
            found: Sequence[Row | None] = type(host).rows(host, places)
            return found

        host.rows = rows

    def refuse_reads(self, *hook_ids: str) -> None:
        refused = {self._seq(hook_id) for hook_id in hook_ids}
        host = self.dispatch_host

        def hook(seq: int) -> tuple[Envelope, bytes] | None:
            if seq in refused:
                raise StoreError("Corruption: block checksum mismatch")
            found: tuple[Envelope, bytes] | None = type(host).hook(host, seq)
            return found

        host.hook = hook


def copy_store(store: Path, image: Path) -> None:
    """Copy an open store as a crash would leave it; again when a compaction ended meanwhile."""
    for _ in range(50):
        before = sorted(str(file) for file in store.rglob("*"))
        with contextlib.suppress(shutil.Error, FileNotFoundError):
            shutil.copytree(store, image)
            if sorted(str(file) for file in store.rglob("*")) == before:
                return
        shutil.rmtree(image, ignore_errors=True)
    raise AssertionError("the store never held still")
