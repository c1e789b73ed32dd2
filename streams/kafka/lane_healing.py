"""The sweeps over the lanes of owned partitions: each partition's, one after another (spec 03 "Lanes").

Owns which partitions are swept and when; how a lane is healed is the sweep's, and the fold's.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator

from ankusa.store.errors import StoreError
from ankusa.store.tables import Tables
from schemas import records
from schemas.records import LaneHeal, Topic
from streams.kafka.fleet_log import FleetLog, Partition
from streams.local.lane_sweep import LaneSweep

log = logging.getLogger("ankusa.sweeper")

PAUSE_MS = 10
PASS_MS = 10_000
"""Between slices and between passes, as on the embedded host."""


class _Store:
    """A partition, as `LaneSweep` asks for it."""

    def __init__(self, fleet: FleetLog, partition: Partition) -> None:
        self._fleet = fleet
        self._partition = partition

    @property
    def tables(self) -> Tables:
        return self._partition.tables

    @property
    def next_offset(self) -> int:
        return self._partition.turn + 1

    def publish(self, record: LaneHeal) -> None:
        self._fleet.publish(Topic.OUTCOMES, self._partition.partition, records.encode(record), _told)


class LaneHealing:
    """The lanes of one node's partitions."""

    def __init__(self, fleet: FleetLog) -> None:
        self._fleet = fleet
        self._sweeps: dict[int, LaneSweep] = {}
        self.healed = 0

    def add(self, number: int) -> None:
        self._sweeps[number] = LaneSweep(_Store(self._fleet, self._fleet.partitions[number]))

    def remove(self, number: int) -> None:
        gone = self._sweeps.pop(number, None)
        self.healed += 0 if gone is None else gone.healed

    def figures(self) -> tuple[int, int | None, int]:
        """Promotions since the process started; since when (unix ms) the oldest head of a lane with members is head,
        None without one; the rows of the longest lane."""
        sweeps = list(self._sweeps.values())
        since = [sweep.oldest_since for sweep in sweeps if sweep.oldest_since is not None]
        healed = self.healed + sum(sweep.healed for sweep in sweeps)
        return healed, min(since, default=None), max((sweep.longest for sweep in sweeps), default=0)

    def run(self) -> Iterator[None]:
        """One pass over every partition, in slices. A partition that goes meanwhile is left where it is."""
        for number, sweep in list(self._sweeps.items()):
            for _ in sweep.run():
                yield
                if self._sweeps.get(number) is not sweep:
                    break

    async def run_for_ever(self) -> None:
        while True:
            try:
                for _ in self.run():
                    await asyncio.sleep(PAUSE_MS / 1000)
            except StoreError as error:
                log.warning("event=sweep_refused reason=%s", error)
            except Exception:
                log.exception("event=sweep_failed sweep=lanes")
            await asyncio.sleep(PASS_MS / 1000)


def _told(error: StoreError | None) -> None:
    """A healing that is lost is found again by the next pass."""
