"""The topic `dead`: hooks of dead rows, so that `hooks` need not be kept for them.

A hook is here once, however many of its rows are dead, by its seq, and stays while it has a row: a dead one that is
replayed is delivered from here. Owns what is written there and read back into the tables of an owned partition, and
which hooks it has (`local/dead/<seq>`, the store's own note: the topic itself says so to the next owner), and how far
the store has read it: a disk that was kept reads on. Decides nothing about a row.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import Protocol

from ankusa.store import keys
from ankusa.store.errors import StoreError
from ankusa.store.tables import Tables
from schemas import records
from streams.kafka import places
from streams.kafka.fleet_log import FleetLog
from streams.kafka.log_producer import LogProducer

SLICE = 250
"""Notes looked at in one go: two or three milliseconds."""

PAUSE_S = 0.01

SEQ_DIGITS = 20
"""Of the greatest."""

_NOTE = b"local/dead/"
_NOTES_END = b"local/dead0"
_READ_TO = b"local/dead-read"


class Read(Protocol):
    """Some records of a partition of `dead`, the offset after them, and whether that is its end."""

    async def __call__(self, number: int, start: int) -> tuple[Sequence[tuple[bytes, bytes | None]], int, bool]: ...


class DeadHooks:
    """Those of one node's partitions. `topic` is the name of `dead`, `read` reads it."""

    def __init__(self, topic: str, fleet: FleetLog, producer: LogProducer, read: Read) -> None:
        self._topic = topic
        self._fleet = fleet
        self._producer = producer
        self._read = read
        # By partition, how far its topic is read back since it came; and those that were read from the beginning.
        self._next: dict[int, int] = {}
        self._whole: set[int] = set()
        self._locks: dict[int, asyncio.Lock] = {}
        self.dropped = 0

    def remove(self, number: int) -> None:
        """A partition goes."""
        self._next.pop(number, None)
        self._whole.discard(number)
        self._locks.pop(number, None)

    def _tables(self, number: int) -> Tables:
        tables = self._fleet.tables(number)
        if tables is None:
            raise StoreError(f"partition {number} is not this node's any more")
        return tables

    # -- reading back -----------------------------------------------------------------

    async def know(self, number: int) -> None:
        """Read a partition on from where its disk has read it, unless that was done since it came. Raises
        StoreError."""
        if number not in self._next:
            stored = self._tables(number).database.get("meta", _READ_TO)
            await self._read_on(number, 0 if stored is None else keys.read_u64(stored))

    async def read_back(self, number: int) -> None:
        """Have in the tables every hook that the topic has and a row needs: from the beginning, since one is missing.
        Again, it reads what is new: an owner of before may have written until a moment ago. Raises StoreError."""
        await self._read_on(number, self._next.get(number, 0) if number in self._whole else 0)
        self._whole.add(number)

    async def _read_on(self, number: int, start: int) -> None:
        lock = self._locks.setdefault(number, asyncio.Lock())
        async with lock:
            ended = False
            while not ended:
                found, start, ended = await self._read(number, start)
                if self._locks.get(number) is not lock:
                    raise StoreError(f"partition {number} went meanwhile")
                self._take(self._tables(number), found, start)
            self._next[number] = start

    def _take(self, tables: Tables, found: Sequence[tuple[bytes, bytes | None]], following: int) -> None:
        """Put hooks with a row into the tables; those without are noted too, and dropped by the next pass. `following`
        is the offset after them."""
        hooks = {int(key): value for key, value in found}  # the last of a key counts
        database = tables.database
        needed = database.present("rows", [keys.u64(seq) for seq in sorted(hooks)])
        there = database.present("hooks", sorted(needed))
        batch = database.batch()
        for seq, hook in hooks.items():
            key = keys.u64(seq)
            if hook is None:
                batch.delete(_NOTE + key, database.handles["meta"])
                continue
            batch.put(_NOTE + key, b"", database.handles["meta"])
            if key in needed and key not in there:
                batch.put(key, hook, database.handles["hooks"])
        batch.put(_READ_TO, keys.u64(following), database.handles["meta"])
        database.write(batch)

    # -- writing ------------------------------------------------------------------------

    def has(self, tables: Tables, seqs: Sequence[int]) -> set[int]:
        """Those of `seqs` that the topic has."""
        noted = tables.database.get_many("meta", [_NOTE + keys.u64(seq) for seq in seqs])
        return {seq for seq, note in zip(seqs, noted, strict=True) if note is not None}

    async def keep(self, number: int, hooks: Mapping[int, bytes]) -> None:
        """Have `hooks`, framed as they are stored, in the topic. Raises StoreError; then they may be there or not."""
        await asyncio.gather(*(self._send(number, seq, hook) for seq, hook in hooks.items()))
        database = self._tables(number).database
        batch = database.batch()
        for seq in hooks:
            batch.put(_NOTE + keys.u64(seq), b"", database.handles["meta"])
        database.write(batch)

    async def drop(self, number: int, seqs: set[int]) -> None:
        """Let go of hooks that no row needs. Raises StoreError; what is left is found again."""
        await asyncio.gather(*(self._send(number, seq, None) for seq in seqs))
        database = self._tables(number).database
        batch = database.batch()
        for seq in seqs:
            batch.delete(_NOTE + keys.u64(seq), database.handles["meta"])
        database.write(batch)
        self.dropped += len(seqs)

    async def drop_settled(self, number: int) -> None:
        """Let go of all hooks of a partition that have no row any more. Raises StoreError."""
        start = _NOTE
        while page := list(self._page(number, start)):
            noted = [key[len(_NOTE) :] for key in page]
            kept = self._tables(number).database.present("rows", noted)
            settled = {keys.read_u64(key) for key in noted if key not in kept}
            if settled:
                await self.drop(number, settled)
            start = keys.after(page[-1])
            await asyncio.sleep(PAUSE_S)

    def _page(self, number: int, start: bytes) -> Iterator[bytes]:
        scan = self._tables(number).database.keys("meta", start, _NOTES_END)
        try:
            yield from islice(scan, SLICE)
        finally:
            scan.close()  # type: ignore[attr-defined]

    async def _send(self, number: int, seq: int, hook: bytes | None) -> None:
        delivered: asyncio.Future[str | None] = asyncio.get_running_loop().create_future()
        told = partial(_told, delivered)
        self._producer.send(self._topic, number, hook, str(seq).encode(), self._fleet.now(), told)
        reason = await delivered
        if reason is not None:
            raise StoreError(reason)


def _told(delivered: asyncio.Future[str | None], offset: int | None, reason: str) -> None:
    if not delivered.done():
        delivered.set_result(reason if offset is None else None)


def check_dead(number: int, key: bytes | None, value: bytes | None) -> None:
    """That a record is the hook of a seq of this partition, or says that it is gone. Raises ValueError, and one of
    `records.DecodeError`."""
    if key is None or not key.isdigit() or len(key) > SEQ_DIGITS or str(int(key)).encode() != key:
        raise ValueError("its key is no seq")
    if places.partition_of(int(key)) != number:
        raise ValueError("its key is a seq of another partition")
    if value is not None:
        records.decode_envelope(records.unframe_hook(value)[0])
