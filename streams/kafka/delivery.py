"""The dispatcher of a worker's partitions: it follows what is owned, what is folded, and what goes.

Owns what happens at each of these, in order: a partition that comes is claimable with its breakers known; one that goes
is claimed no more, its running attempts have a grace period in which their outcomes are still published, and then
nothing is. Never decides who owns a partition.
"""

from __future__ import annotations

import asyncio
import logging

from ankusa.dispatch.dispatcher import Dispatcher
from schemas.records import Topic
from streams.kafka.dispatch_host import KafkaDispatchHost
from streams.kafka.fleet_log import FleetLog
from streams.kafka.folding import PartitionFold
from streams.kafka.owned import OwnedPartitions
from streams.kafka.places import partition_of

log = logging.getLogger("ankusa.dispatch")

GRACE_MS = 10_000
"""How long attempts go on whose partition has gone. Their next owner has the rows due already: what ends in time is one
delivery, what ends later two."""


class Delivery:
    """One node's dispatcher on its partitions. `start` once the dispatcher is there."""

    def __init__(self, fleet: FleetLog, host: KafkaDispatchHost, dispatcher: Dispatcher) -> None:
        self._fleet = fleet
        self._host = host
        self.dispatcher = dispatcher
        self._ending: set[asyncio.Task[None]] = set()

    def start(self, owned: OwnedPartitions) -> None:
        """Follow the partitions that are owned now or later."""
        owned.on_revoked(self._revoked)
        owned.on_folded(self._folded)
        owned.on_stalled(self._stalled)
        owned.on_assigned(self._assigned)

    def _assigned(self, fold: PartitionFold) -> None:
        self._fleet.add(fold)
        self._host.add(fold.partition)
        self.dispatcher.breakers.merge(fold.tables.breakers())
        self.dispatcher.wake()

    def _folded(self, topic: Topic, number: int, offset: int) -> None:
        self._fleet.folded(number, topic)
        self.dispatcher.wake()

    def _stalled(self, number: int, now: bool) -> None:
        self._host.stalled(number, now)
        self.dispatcher.wake()

    def _revoked(self, number: int) -> None:
        self._host.remove(number)
        self._fleet.leave(number)
        rest = self.dispatcher.revoke(lambda seq: partition_of(seq) == number, GRACE_MS)
        task = asyncio.get_running_loop().create_task(rest)
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)
        task.add_done_callback(lambda _: self._fleet.gone(number))
