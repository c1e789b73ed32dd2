"""Reclaiming the space of owned partitions in small steps: bodies of settled hooks, their ids and attempts, and dedupe
keys past their time.

Bodies are a copy of the topic's, so they are deleted here and now; all else is in the changelog, so it goes by a
record, and by the fold. A pass is cut into slices of a few milliseconds, and starts at the first entry that the last
one kept. Owns what may go and when; a hook with any row left, pending or dead, never does.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Iterator
from itertools import islice

from ankusa.store import keys
from ankusa.store.errors import StoreError
from schemas import records
from schemas.records import Expiry, HistoryExpiry, Topic, seq_of
from streams.kafka import history, places
from streams.kafka.fleet_log import FleetLog, Partition
from streams.kafka.topics import HISTORY_KEEP_MS

log = logging.getLogger("ankusa.sweeper")

SLICE = 250
"""Entries looked at in one go: two or three milliseconds, the longest a sweep holds the loop. And so the most keys of
one record: some 100 bytes each."""

PAUSE_MS = 10
PASS_MS = 10_000
SETTLED_KEEP_MS = 60_000
"""A delivered hook keeps its body for a minute, so that somebody who just saw it can look at it."""


EXPIRIES, EXPIRY_TURNS = 100, 200
"""Records of a pass that have ids and attempts go, one after another, and how many slices each has to be folded: two
seconds. What is left is the next pass's."""


class PartitionReclaiming:
    """One partition's. `counts` says what went, by family, but for what the fold counts."""

    def __init__(self, fleet: FleetLog, partition: Partition) -> None:
        self._fleet = fleet
        self._partition = partition
        self._floor = b""
        # Passes that began, with how far the hooks were folded then: their age is known from here on.
        self._seen: deque[tuple[int, int]] = deque()
        self.counts = {"hooks": 0, "dedupe": 0}

    def run(self, at: int) -> Iterator[None]:
        """One pass at `at` (unix ms), in slices."""
        yield from self._hooks(at)
        yield from self._dedupe(at)
        yield from self._history(at)

    def _hooks(self, at: int) -> Iterator[None]:
        number, database = self._partition.partition, self._partition.tables.database
        self._seen.append((at, self._partition.offset(Topic.HOOKS)))
        passed = -1
        while self._seen and self._seen[0][0] <= at - SETTLED_KEEP_MS:
            passed = self._seen.popleft()[1]
        if passed < 0:
            return
        start, end = self._floor, keys.u64(seq_of(places.log_offset(number, passed + 1), 0))
        floor: bytes | None = None
        while page := self._slice("hooks", start, end):
            kept = database.present("rows", page)
            gone = [key for key in page if key not in kept]
            if gone:
                batch = database.batch()
                for key in gone:
                    batch.delete(key, database.handles["hooks"])
                database.write(batch)
                self.counts["hooks"] += len(gone)
            floor = floor or next((key for key in page if key in kept), None)
            start = keys.after(page[-1])
            yield
        self._floor = floor or max(self._floor, end)

    def _dedupe(self, at: int) -> Iterator[None]:
        start = b""
        while expired := self._slice("expiry", start, keys.u64(at)):
            gone = tuple((key[8:].decode(), keys.read_u64(key)) for key in expired)
            value = records.encode(Expiry(gone))
            self._fleet.publish(Topic.OUTCOMES, self._partition.partition, value, _told)
            self.counts["dedupe"] += len(gone)
            start = keys.after(expired[-1])
            yield

    def _history(self, at: int) -> Iterator[None]:
        """Each record takes the oldest that are there when it is folded, so the next waits for that."""
        before = at - HISTORY_KEEP_MS
        for _ in range(EXPIRIES):
            if not history.due(self._partition.tables.database, before):
                return
            told: list[StoreError | None] = []
            value = records.encode(HistoryExpiry(before))
            self._fleet.publish(Topic.OUTCOMES, self._partition.partition, value, told.append)
            for _ in range(EXPIRY_TURNS):
                yield
                if told:
                    break
            if not told or told[0] is not None:
                return

    def _slice(self, family: str, start: bytes, end: bytes) -> list[bytes]:
        scan = self._partition.tables.database.keys(family, start, end)
        page = list(islice(scan, SLICE))
        scan.close()  # type: ignore[attr-defined]
        return page


class Reclaiming:
    """That of one node's partitions."""

    def __init__(self, fleet: FleetLog) -> None:
        self._fleet = fleet
        self._parts: dict[int, PartitionReclaiming] = {}
        self._ended: dict[str, int] = {}

    def add(self, number: int) -> None:
        self._parts[number] = PartitionReclaiming(self._fleet, self._fleet.partitions[number])

    def remove(self, number: int) -> None:
        gone = self._parts.pop(number, None)
        for family, count in gone.counts.items() if gone else ():
            self._ended[family] = self._ended.get(family, 0) + count

    def counts(self) -> dict[str, int]:
        """What went since the process started, by family."""
        total = {"hooks": 0, "dedupe": 0, **self._ended}
        for part in self._parts.values():
            for family, count in part.counts.items():
                total[family] += count
        return total

    async def run_for_ever(self) -> None:
        while True:
            for number, part in list(self._parts.items()):
                try:
                    for _ in part.run(self._fleet.now()):
                        await asyncio.sleep(PAUSE_MS / 1000)
                        if self._parts.get(number) is not part:
                            break
                except StoreError as error:
                    log.warning("event=sweep_refused partition=%d reason=%s", number, error)
                except Exception:
                    log.exception("event=sweep_failed partition=%d", number)
            await asyncio.sleep(PASS_MS / 1000)


def _told(error: StoreError | None) -> None:
    """Keys that are left are found again by the next pass."""
