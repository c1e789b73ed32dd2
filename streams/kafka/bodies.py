"""Hooks of owned partitions that are not in their tables: fetched from the topic `hooks`, and kept there.

Tables that were restored from the changelog have rows without their hooks. Those that are claimed are asked for here,
read by offset, in the order of offsets, and put into the tables, so that each record is read about once. Owns who waits
for which hook; one that the topic has no more, and `dead` has not either, is told apart from a broker that does not
answer, which is asked until it does. Reads; writes nothing but hooks as they came.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from itertools import islice
from typing import Protocol

from ankusa.store import keys
from ankusa.store.tables import Tables
from schemas import records
from schemas.records import DecodeError, Topic, seq_of
from streams.kafka import places
from streams.kafka.fleet_log import FleetLog

log = logging.getLogger("ankusa.kafka")

AGAIN_S = 1.0
"""Between reads while the broker does not answer."""

ROUND_RECORDS = 32
"""Records of one read: each is a megabyte at most, but for one with a single larger hook."""

AHEAD_ROWS = 128
"""Rows looked at for what will be asked for next: less than a millisecond."""

MISSING = 10_000
"""Hooks remembered as gone from the topic: their rows die of it once, and are asked for no more."""


class HookReader(Protocol):
    """Reads records of the topic `hooks` by offset."""

    async def read(self, partition: int, offsets: Sequence[int]) -> dict[int, bytes]:
        """The records at these ascending offsets; those that the topic has no more are left out. Raises StoreError."""


class Bodies:
    """The hooks of one node's partitions."""

    def __init__(
        self, fleet: FleetLog, reader: HookReader, read_back: Callable[[int], Awaitable[None]] | None = None
    ) -> None:
        """`read_back` puts into a partition's tables the hooks that are kept elsewhere when their topic lets go of
        them; it raises StoreError."""
        self._fleet = fleet
        self._reader = reader
        self._read_back = read_back
        # By partition: rows below this seq may have come without their hooks.
        self._restored: dict[int, int] = {}
        self._wanted: dict[int, dict[int, list[Callable[[], None]]]] = {}
        self._missing: OrderedDict[int, None] = OrderedDict()
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self.fetched = 0

    def add(self, number: int) -> None:
        """A partition came, with what its tables hold."""
        partition = self._fleet.partitions[number]
        self._restored[number] = seq_of(places.log_offset(number, partition.offset(Topic.HOOKS) + 1), 0)

    def remove(self, number: int) -> None:
        """A partition goes: nobody waits any more, and nothing is put into its tables."""
        self._restored.pop(number, None)
        self._wanted.pop(number, None)
        task = self._tasks.pop(number, None)
        if task is not None:
            task.cancel()

    def missing(self, seq: int) -> bool:
        """Whether the topic has been asked for this hook, and has it no more."""
        return seq in self._missing

    def stored(self, tables: Tables, seq: int) -> bool:
        """Whether a hook is at hand. Raises StoreError."""
        return seq >= self._restored.get(places.partition_of(seq), 0) or _present(tables, seq)

    def fetch(self, seq: int, fetched: Callable[[], None]) -> None:
        """Fetch a hook of an owned partition; `fetched` is called when it is in the tables, or known to be gone."""
        number = places.partition_of(seq)
        self._wanted.setdefault(number, {}).setdefault(seq, []).append(fetched)
        if number not in self._tasks:
            self._tasks[number] = asyncio.get_running_loop().create_task(self._run(number))

    async def _run(self, number: int) -> None:
        """Fetch all that is wanted of a partition, round by round; what is asked for meanwhile is the next round's."""
        complained = False
        while self._wanted.get(number):
            await asyncio.sleep(0)  # the rest of the scan that asked
            wanted = sorted(self._wanted[number])
            offsets = sorted({places.offset_of(seq) for seq in wanted})[:ROUND_RECORDS]
            seqs = [seq for seq in wanted if places.offset_of(seq) <= offsets[-1]]
            try:
                offsets += self._ahead(number, seqs[-1], ROUND_RECORDS - len(offsets))
                found = await self._reader.read(number, offsets)
                gone = any(places.offset_of(seq) not in found for seq in seqs)
                if gone and self._read_back is not None:
                    await self._read_back(number)
                self._take(number, seqs, found)
                complained = False
            except Exception as error:  # whatever it is, rows wait for this to go on
                if not complained:
                    log.warning("event=hooks_unreadable partition=%d waiting=%d reason=%s", number, len(seqs), error)
                complained = True
                await asyncio.sleep(AGAIN_S)
        self._tasks.pop(number, None)

    def _ahead(self, number: int, last: int, room: int) -> list[int]:
        """Up to `room` offsets that rows behind `last` will ask for next: a round costs the same for ten as for one.
        Raises StoreError."""
        tables = self._fleet.tables(number)
        if tables is None or room <= 0:
            return []
        start, end = keys.u64(last + 1), keys.u64(max(last + 1, self._restored.get(number, 0)))
        scan = tables.database.keys("rows", start, end)
        behind = sorted({key[:8] for key in islice(scan, AHEAD_ROWS)})
        scan.close()  # type: ignore[attr-defined]
        here = tables.database.present("hooks", behind)
        offsets = {places.offset_of(keys.read_u64(key)) for key in behind if key not in here}
        return sorted(offsets - {places.offset_of(last)})[:room]

    def _take(self, number: int, seqs: Sequence[int], found: dict[int, bytes]) -> None:
        tables = self._fleet.tables(number)
        waiting = self._wanted.get(number)
        if tables is None or waiting is None:
            self._wanted.pop(number, None)
            return
        hooks = {seq: hook for offset, record in found.items() for seq, hook in _hooks(number, offset, record).items()}
        self._put(tables, hooks)
        for seq in seqs:
            if seq not in hooks and not _present(tables, seq):
                self._missing[seq] = None
                if len(self._missing) > MISSING:
                    self._missing.popitem(last=False)
            for fetched in waiting.pop(seq):
                fetched()

    def _put(self, tables: Tables, hooks: dict[int, bytes]) -> None:
        """Those with a row: the others are settled."""
        wanted = tables.database.present("rows", [keys.u64(seq) for seq in sorted(hooks)])
        batch = tables.database.batch()
        for key in wanted:
            batch.put(key, hooks[keys.read_u64(key)], tables.database.handles["hooks"])
        tables.database.write(batch)
        self.fetched += len(wanted)


def _present(tables: Tables, seq: int) -> bool:
    return bool(tables.database.present("hooks", [keys.u64(seq)]))


def _hooks(number: int, offset: int, record: bytes) -> dict[int, bytes]:
    """The hooks of a commit as they are stored, by seq; none of a record that is no commit."""
    try:
        _, framed = records.decode_commit(record)
    except DecodeError:
        return {}
    first = places.log_offset(number, offset)
    return {seq_of(first, index): records.frame_hook(*hook) for index, hook in enumerate(framed)}
