"""The replayers of a worker: one for each owned partition, started when it comes and ended when it goes.

Owns their lives and their wakes; what a replayer does is `ankusa/replay`'s. One that is ended in the middle of a page
loses nothing: the page is in the log or not, and the next owner goes on from there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from ankusa.core.pressure import Pressure
from ankusa.replay.replayer import Replayer
from schemas.records import Topic
from streams.kafka.fleet_log import FleetLog
from streams.kafka.folding import PartitionFold
from streams.kafka.owned import OwnedPartitions
from streams.kafka.replay_host import PartitionReplays


class Replaying:
    """The replayers of one node. `start` after the fleet log knows of its partitions."""

    def __init__(self, fleet: FleetLog, pressure: Callable[[], Pressure | None]) -> None:
        self._fleet = fleet
        self._pressure = pressure
        self._replayers: dict[int, Replayer] = {}
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._ended: set[asyncio.Task[None]] = set()

    def start(self, owned: OwnedPartitions) -> None:
        owned.on_revoked(self._revoked)
        owned.on_folded(self._folded)
        owned.on_assigned(self._assigned)

    def wake(self) -> None:
        """A job was started or changed."""
        for replayer in self._replayers.values():
            replayer.wake()

    def _assigned(self, fold: PartitionFold) -> None:
        number = fold.partition
        replayer = self._replayers[number] = Replayer(PartitionReplays(self._fleet, number, self._pressure))
        self._tasks[number] = asyncio.get_running_loop().create_task(replayer.run())

    def _folded(self, topic: Topic, number: int, offset: int) -> None:
        if topic is Topic.REPLAYS and number in self._replayers:
            self._replayers[number].wake()

    def _revoked(self, number: int) -> None:
        self._replayers.pop(number, None)
        task = self._tasks.pop(number, None)
        if task is not None:
            task.cancel()
            self._ended.add(task)
            task.add_done_callback(self._ended.discard)

    async def stop(self) -> None:
        for number in list(self._tasks):
            self._revoked(number)
        await asyncio.gather(*self._ended, return_exceptions=True)
