"""The size of the fleet's pen, for edges, which refuse what would make it larger than `quarantine.max_bytes`.

Each owner of a partition tells what its part of the pen holds, in the compacted topic `sources` under
`pen/<partition>`, when that has changed by a hundredth of the partition's share of the bound, and every few seconds at
most. Edges follow the topic and go by the sum. So the bound is late by those seconds, and by a hundredth. Owns these
records, and when one is written; counts nothing itself.
"""

from __future__ import annotations

import asyncio
import logging
from typing import NamedTuple

import msgspec

from ankusa.store.errors import StoreError
from schemas.config import Config
from schemas.records import Topic, encode
from streams.kafka.fleet_log import FleetLog

log = logging.getLogger("ankusa.worker")

PREFIX = "pen/"

ONLY = 0
"""The topic has one partition."""

PASS_S = 2.0
"""Between two looks, and so two records of a partition."""

_decode = msgspec.msgpack.Decoder(int).decode


def is_pen(key: str) -> bool:
    return key.startswith(PREFIX)


class PenSize(NamedTuple):
    """What the pen holds of a partition."""

    partition: int
    size_bytes: int


def read_size(key: str, value: bytes | None, partitions: int) -> PenSize:
    """A record of the topic. Raises ValueError, or one of `records.DecodeError`."""
    found = PenSize(int(key.removeprefix(PREFIX)), 0 if value is None else _decode(value))
    if not 0 <= found.partition < partitions or found.size_bytes < 0:
        raise ValueError("a pen of no partition, or of less than nothing")
    return found


class PenSizes:
    """What the topic says the pen holds, of each partition, in bytes: for edges, which take it all as one."""

    def __init__(self) -> None:
        self.by_partition: dict[int, int] = {}
        self.total_bytes = 0

    def take(self, size: PenSize) -> None:
        self.total_bytes += size.size_bytes - self.by_partition.get(size.partition, 0)
        self.by_partition[size.partition] = size.size_bytes


class TellingPens:
    """Tells the sizes of the partitions that one worker owns. `told` is what the topic says."""

    def __init__(self, config: Config, fleet: FleetLog, told: PenSizes) -> None:
        self._fleet = fleet
        self._told = told
        self._step_bytes = max(1, config.quarantine.max_bytes // (100 * config.kafka.partitions))

    def changed(self) -> dict[int, int]:
        """By partition, sizes that the topic does not know well enough: an empty pen is known as such."""
        found: dict[int, int] = {}
        for number, partition in self._fleet.partitions.items():
            _, size_bytes = partition.tables.pen_size()
            known = self._told.by_partition.get(number, 0)
            if abs(size_bytes - known) >= self._step_bytes or (size_bytes == 0 and known != 0):
                found[number] = size_bytes
        return found

    async def tell(self) -> None:
        """One look. Raises StoreError."""
        for number, size_bytes in self.changed().items():
            await self._fleet.deliver(Topic.SOURCES, ONLY, encode(size_bytes), f"{PREFIX}{number}".encode())
            self._told.take(PenSize(number, size_bytes))

    async def run_for_ever(self) -> None:
        refused = False
        while True:
            await asyncio.sleep(PASS_S)
            try:
                await self.tell()
                refused = False
            except StoreError as error:
                if not refused:  # once, however long it lasts
                    log.warning("event=pen_untold reason=%s", error)
                refused = True
            except Exception:
                log.exception("event=pen_untold")
