"""Reclaiming space in small steps: dedupe keys past their time, settled hooks, old history, old records.

A pass over a family is cut into slices of a few milliseconds, so that no sweep is ever noticed by a delivery, and it
starts at the first entry that the last one kept: what was deleted is not walked over again and again. Owns what may go
and when; a hook with any row left, pending or dead, never does.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator

from ankusa import lifecycle
from ankusa.store import keys
from ankusa.store.errors import StoreError
from schemas.records import Topic, seq_of
from streams.local.lane_sweep import LaneSweep
from streams.local.log import LocalLog

log = logging.getLogger("ankusa.sweeper")

SLICE = 250
"""Entries looked at in one go: two or three milliseconds, the longest a sweep holds the loop."""

PAUSE_MS = 10
PASS_MS = 10_000
"""Between slices and between passes. A pass over 5,000,000 unsettled hooks takes some four minutes of idle time."""

SETTLED_KEEP_MS = 60_000
"""A delivered hook keeps its body for a minute, so that somebody who just saw it can look at it."""

HISTORY_KEEP_MS = 7 * 86_400_000
"""Attempt history, hook ids and records of settled hooks are kept for a week; those of a row that is left, with it."""


class Sweeper:
    """One log's reclaiming. `counts` says what went, by family."""

    def __init__(self, store: LocalLog) -> None:
        self._store = store
        self._task: asyncio.Task[None] | None = None
        # Where the next pass over a family starts; a restart begins at its start once.
        self._floors: dict[str, bytes] = {}
        self.lane_sweep = LaneSweep(store)
        self.counts: dict[str, int] = {"dedupe": 0, "hooks": 0, "attempts": 0, "ids": 0}
        self.counts["checkins"] = 0

    def start(self) -> None:
        self._task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        while True:
            for sweep in (
                *(self.lanes, self.dedupe, self.hooks, self.attempts, self.ids, self.records),
                self.checkins,
            ):
                try:
                    for _ in sweep(self._store.now()):
                        await asyncio.sleep(PAUSE_MS / 1000)
                except StoreError as error:
                    log.warning("event=sweep_refused reason=%s", error)
                except Exception:
                    log.exception("event=sweep_failed sweep=%s", sweep.__name__)
            await asyncio.sleep(PASS_MS / 1000)

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def lanes(self, at: int) -> Iterator[None]:
        """Promote a member of each lane whose head is gone. Costs one counter read while no member waits."""
        yield from self.lane_sweep.run()

    def dedupe(self, at: int) -> Iterator[None]:
        """Drop dedupe keys that expired by `at`. A key claimed again meanwhile has a new expiry entry, and stays."""
        start, end = self._floors.get("expiry", b""), keys.u64(at)
        while expired := self._slice("expiry", start, end):
            tables = self._store.tables
            gone: list[tuple[str, bytes]] = []
            for key in expired:
                held = tables.database.get("dedupe", key[8:])
                if held is not None and held[:8] == key[:8]:
                    gone.append(("dedupe", key[8:]))
                gone.append(("expiry", key))
            self._drop("dedupe", gone, len(expired))
            start = keys.after(expired[-1])
            yield
        self._floors["expiry"] = end  # a key that is stored from now on expires later

    def hooks(self, at: int) -> Iterator[None]:
        """Drop bodies of hooks without a row that were committed `SETTLED_KEEP_MS` before `at`."""
        limit = self._store.offset_at(Topic.HOOKS, at - SETTLED_KEEP_MS)
        yield from self._settled("hooks", keys.u64(seq_of(limit, 0)))

    def attempts(self, at: int) -> Iterator[None]:
        """Drop the history of hooks without a row that were committed `HISTORY_KEEP_MS` before `at`."""
        limit = self._store.offset_at(Topic.HOOKS, at - HISTORY_KEEP_MS)
        yield from self._settled("attempts", keys.u64(seq_of(limit, 0)))
        # A row that is left gets more history, below what was kept of the others perhaps; its hook is kept with it.
        self._floors["attempts"] = min(self._floors["attempts"], self._floors.get("hooks", b""))

    def checkins(self, at: int) -> Iterator[None]:
        """Forget the references of hooks without a row that were committed `SETTLED_KEEP_MS` before `at`."""
        limit = self._store.offset_at(Topic.HOOKS, at - SETTLED_KEEP_MS)
        yield from self._settled("checkins", keys.u64(seq_of(limit, 0)))
        # A row that is left may be checked in yet; its hook is kept with it.
        self._floors["checkins"] = min(self._floors["checkins"], self._floors.get("hooks", b""))

    def _settled(self, family: str, end: bytes) -> Iterator[None]:
        """Drop keys of `family` below `end` that begin with the seq of a hook without a row."""
        start, floor = self._floors.get(family, b""), None
        while page := self._slice(family, start, end):
            kept = self._store.tables.database.present("rows", sorted({key[:8] for key in page}))
            gone = [(family, key) for key in page if key[:8] not in kept]
            self._drop(family, gone, len(gone))
            floor = floor or next((key for key in page if key[:8] in kept), None)
            start = keys.after(page[-1])
            yield
        self._floors[family] = floor or max(self._floors.get(family, b""), end)

    def ids(self, at: int) -> Iterator[None]:
        """Drop ids of hooks without a row that were committed `HISTORY_KEEP_MS` before `at`.

        Ids are in the order of their time, near enough: a pass ends at the first slice without an old one.
        """
        limit = seq_of(self._store.offset_at(Topic.HOOKS, at - HISTORY_KEEP_MS), 0)
        start, floor = self._floors.get("ids", b""), None
        database = self._store.tables.database
        while page := self._slice("ids", start, b"\xff"):
            found = database.get_many("ids", page)
            old = {value: key for key, value in zip(page, found, strict=True) if value and keys.read_u64(value) < limit}
            kept = database.present("rows", sorted(old))
            gone = {key for value, key in old.items() if value not in kept}
            self._drop("ids", [("ids", key) for key in gone], len(gone))
            floor = floor or next((key for key in page if key not in gone), None)
            start = keys.after(page[-1])
            yield
            if not old:
                break
        self._floors["ids"] = floor or start

    def records(self, at: int) -> Iterator[None]:
        """Drop records older than `HISTORY_KEEP_MS`: what they did is in the tables. The audit trail is kept longer."""
        for topic in Topic:
            keep_ms = lifecycle.KEEP_MS if topic is Topic.AUDIT else HISTORY_KEEP_MS
            name, end = f"log {topic.name}", keys.log_key(topic, self._store.offset_at(topic, at - keep_ms))
            floor = self._floors.get(name, keys.log_key(topic, 0))
            if self._store.tables.database.first_key("log", floor, end) is not None:
                self._store.drop_range("log", floor, end)
                self._floors[name] = end
            yield

    def _slice(self, family: str, start: bytes, end: bytes) -> list[bytes]:
        scan = self._store.tables.database.keys(family, start, end)
        page = [key for key, _ in zip(scan, range(SLICE), strict=False)]
        scan.close()  # type: ignore[attr-defined]
        return page

    def _drop(self, name: str, gone: list[tuple[str, bytes]], count: int) -> None:
        if gone:
            self._store.drop(gone)
            self.counts[name] += count
