"""Records that no row needs, deleted from the topics `hooks` and `quarantine` by the owner of their partition.

A pass, in order: (1) what the group has committed and what is older than `KEEP_MS` may go, (2) of `hooks` only what is
below the floor: the first hook that has a row. A hook all of whose rows are dead is no floor: it is in the topic `dead`
before anything is deleted. Nor is one that has waited for longer than `WAIT_MS`, where few such hold back many. (3) The
brokers say that the partition is still owned. (4) Records are deleted, (5) `dead`
lets go of hooks without a row. A held hook is in the tables and their changelog, so `quarantine` needs no floor.

Owns what may go and when. A partition that refuses a step has nothing deleted by it, and the next pass begins anew.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Protocol

from ankusa.store import keys
from ankusa.store.errors import StoreError
from ankusa.store.tables import Tables
from schemas import records
from schemas.records import RowState, Topic, seq_of
from streams.kafka import places
from streams.kafka.bodies import Bodies
from streams.kafka.dead_hooks import DeadHooks
from streams.kafka.fleet_log import FleetLog
from streams.kafka.topic_trim import Place, Span

log = logging.getLogger("ankusa.sweeper")

KEEP_MS = 600_000
"""A settled hook's record stays for ten minutes, for whoever looks at the topic: more of it is a broker's disk."""

WAIT_MS = 3_600_000
"""A hook that waits for longer than an hour may be copied to `dead`, as one whose rows are dead."""

WAITING, GAIN = 1000, 10
"""So many in one pass, and only where ten records go for each copy: a sink that is down for a day would have all its
hooks written twice."""

PASS_S = 60.0
"""Between passes: one request a minute for all partitions of a worker, however many hooks there are."""

SLICE = 250
"""Rows looked at in one go: two or three milliseconds."""

PAUSE_S = 0.01

COPY_BYTES = 4 << 20
"""Hooks on their way to `dead` at once, but for a single larger one."""


class Trim(Protocol):
    """The broker's side (`topic_trim.TopicTrim`). Blocks."""

    def spans(self, places: list[Place], before_at: int) -> tuple[dict[Place, Span], StoreError | None]: ...
    def delete_below(self, floors: Mapping[Place, int]) -> tuple[dict[Place, int], StoreError | None]: ...


class PartitionFloor:
    """The floor of one partition of `hooks`."""

    def __init__(self, number: int, fleet: FleetLog, bodies: Bodies, dead: DeadHooks) -> None:
        self._number = number
        self._fleet = fleet
        self._bodies = bodies
        self._dead = dead
        # Hooks below this key are settled, or in `dead`.
        self._passed = b""

    async def up_to(self, span: Span, waited: int) -> int:
        """The offset below which `hooks` is not needed, at most `span.end`. Hooks below offset `waited` have waited for
        long. Raises StoreError."""
        start, end = self._key(span.start), self._key(span.end)
        start = max(start, self._passed)
        waiting: dict[int, None] = {}
        floor, passed = span.end, max(self._passed, end)
        while page := self._page(start, end):
            holding = _first_holding(page, waiting, waited)
            dead = dict.fromkeys(seq for seq, is_dead in page if is_dead)
            await self._keep([seq for seq in dead if holding is None or seq < holding])
            if holding is not None:
                floor, passed = places.offset_of(holding), keys.u64(holding)
                break
            start = keys.u64(page[-1][0] + 1)
            await asyncio.sleep(PAUSE_S)
        if waiting:
            first = next(iter(waiting))
            if floor - places.offset_of(first) < GAIN * len(waiting):
                floor, passed = places.offset_of(first), keys.u64(first)
            else:
                await self._keep(list(waiting))
        self._passed = passed
        return floor

    def _key(self, offset: int) -> bytes:
        return keys.u64(seq_of(places.log_offset(self._number, offset), 0))

    def _page(self, start: bytes, end: bytes) -> list[tuple[int, bool]]:
        """Of the next rows, in order: the hook's seq, and whether the row is dead. Never a part of a hook's rows."""
        tables = self._fleet.tables(self._number)
        if tables is None:
            raise StoreError(f"partition {self._number} is not this node's any more")
        scan = tables.database.items("rows", start, end)
        page: list[tuple[int, bool]] = []
        for key, value in scan:
            seq = keys.split_row_key(key)[0]
            if len(page) >= SLICE and seq != page[-1][0]:
                break
            page.append((seq, _is_dead(value)))
        scan.close()  # type: ignore[attr-defined]
        return page

    async def _keep(self, seqs: list[int]) -> None:
        """Have hooks in `dead`, a few megabytes at a time."""
        tables = self._fleet.tables(self._number)
        if tables is None or not seqs:
            return
        there = self._dead.has(tables, seqs)
        part: dict[int, bytes] = {}
        size_bytes = 0
        for seq in seqs:
            hook = None if seq in there else await self._hook(tables, seq)
            if hook is None:
                continue
            if part and size_bytes + len(hook) > COPY_BYTES:
                await self._dead.keep(self._number, part)
                part, size_bytes = {}, 0
            part[seq] = hook
            size_bytes += len(hook)
        if part:
            await self._dead.keep(self._number, part)

    async def _hook(self, tables: Tables, seq: int) -> bytes | None:
        """A hook as it is stored; None when it is gone, and nothing is left of it to keep."""
        if not self._bodies.stored(tables, seq):
            await self._fetched(seq)
        return tables.database.get("hooks", keys.u64(seq))

    async def _fetched(self, seq: int) -> None:
        """Wait until a hook is in the tables, or known to be gone."""
        fetched = asyncio.Event()
        self._bodies.fetch(seq, fetched.set)
        while not fetched.is_set():
            if self._fleet.tables(self._number) is None:
                raise StoreError(f"partition {self._number} is not this node's any more")
            try:
                await asyncio.wait_for(fetched.wait(), 1.0)
            except TimeoutError:
                continue


class Trimming:
    """That of one node's partitions. `counts` says what went, by topic; `still_owned` asks the brokers, and a partition
    of which they do not say so is passed over."""

    def __init__(
        self,
        fleet: FleetLog,
        bodies: Bodies,
        dead: DeadHooks,
        trim: Trim,
        topics: tuple[str, str],
        still_owned: Callable[[int], Awaitable[bool]],
        keep_ms: int = KEEP_MS,
        wait_ms: int = WAIT_MS,
    ) -> None:
        """`topics` are the names of `hooks` and `quarantine`."""
        self._fleet = fleet
        self._bodies = bodies
        self._dead = dead
        self._trim = trim
        self._hooks, self._pen = topics
        self._still_owned = still_owned
        self.keep_ms = keep_ms
        self.wait_ms = wait_ms
        self._floors: dict[int, PartitionFloor] = {}
        self._deleted = {self._hooks: 0, self._pen: 0}
        self._refused: str | None = None

    def add(self, number: int) -> None:
        self._floors[number] = PartitionFloor(number, self._fleet, self._bodies, self._dead)

    def remove(self, number: int) -> None:
        self._floors.pop(number, None)
        self._dead.remove(number)

    def counts(self) -> dict[str, int]:
        """Records deleted since the process started."""
        return {
            "hooks_topic": self._deleted[self._hooks],
            "quarantine_topic": self._deleted[self._pen],
            "dead_topic": self._dead.dropped,
        }

    async def run_for_ever(self) -> None:
        while True:
            try:
                await self.run()
                self._refused = None
            except StoreError as error:
                if self._refused is None:  # once, however long it lasts
                    log.warning("event=trim_refused reason=%s", error)
                self._refused = str(error)
            except Exception:
                log.exception("event=trim_failed")
            await asyncio.sleep(PASS_S)

    async def run(self) -> None:
        """One pass. What stops it for a partition stops it for no other. Raises the last StoreError, at its end."""
        refusals: list[StoreError | None] = []
        owned = [number for number in list(self._floors) if await self._each(number, self._dead.know(number), refusals)]
        wanted = [(topic, number) for number in owned for topic in (self._hooks, self._pen)]
        if wanted:
            await self._delete(owned, wanted, refusals)
        for number in owned:
            if await self._still_owned(number):  # or what is kept there may be the next owner's
                await self._each(number, self._dead.drop_settled(number), refusals)
        for refused in reversed(refusals):
            if refused is not None:
                raise refused

    async def _delete(self, owned: list[int], wanted: list[Place], refusals: list[StoreError | None]) -> None:
        """Delete from both topics what is below their floors. Raises StoreError where no floor can be told."""
        at = self._fleet.now()
        waited, refused = await asyncio.to_thread(self._trim.spans, wanted, at - self.wait_ms)
        spans, refused_too = await asyncio.to_thread(self._trim.spans, wanted, at - self.keep_ms)
        refusals += [refused, refused_too]
        floors: dict[Place, int] = {}
        for number in owned:
            if all((topic, number) in spans and (topic, number) in waited for topic in (self._hooks, self._pen)):
                await self._each(number, self._add_floors(number, spans, waited, floors), refusals)
        if floors:
            begins, refused = await asyncio.to_thread(self._trim.delete_below, floors)
            refusals.append(refused)
            for place, begin in begins.items():
                self._deleted[place[0]] += max(0, begin - spans[place].start)

    async def _each(self, number: int, step: Awaitable[None], refusals: list[StoreError | None]) -> bool:
        """A step of one partition; False when it was refused, or the partition went, which is no refusal."""
        try:
            await step
        except StoreError as error:
            if number in self._floors:
                refusals.append(error)
            return False
        return number in self._floors

    async def _add_floors(
        self, number: int, spans: Mapping[Place, Span], waited: Mapping[Place, Span], floors: dict[Place, int]
    ) -> None:
        """To `floors` those of a partition's topics, where something is below them."""
        floor, partition = self._floors.get(number), self._fleet.partitions.get(number)
        if floor is None or partition is None:
            return
        hooks, pen = (self._hooks, number), (self._pen, number)
        # Whatever the group has committed: a hook that is not folded yet has no row that would hold it.
        span = Span(spans[hooks].start, min(spans[hooks].end, partition.offset(Topic.HOOKS) + 1))
        pen_end = min(spans[pen].end, partition.offset(Topic.QUARANTINE) + 1)
        found = {hooks: await floor.up_to(span, waited[hooks].end), pen: pen_end}
        below = {place: offset for place, offset in found.items() if offset > spans[place].start}
        if below and await self._still_owned(number) and number in self._floors:
            floors.update(below)


def _first_holding(page: Sequence[tuple[int, bool]], waiting: dict[int, None], waited: int) -> int | None:
    """The first hook of `page` that the topic must keep. Those before it that have waited long go into `waiting`."""
    for seq, is_dead in page:
        if is_dead or seq in waiting:
            continue
        if places.offset_of(seq) >= waited or len(waiting) == WAITING:
            return seq
        waiting[seq] = None
    return None


def _is_dead(value: bytes) -> bool:
    """A row that cannot be read holds its hook: whoever mends it will want it."""
    try:
        return records.decode_row(value).state is RowState.DEAD
    except records.DecodeError:
        return False
