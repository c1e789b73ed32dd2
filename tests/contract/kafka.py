"""The Kafka host under the contract suite: real topics on a real broker, a real fold, a real dispatcher, virtual time.

Time stands still while the broker owes an answer: a delivery report, or a record on its way back to the fold. In place
of the worker, whose consumer group has its own time, the records come from a consumer that is told its partitions.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
from confluent_kafka import Message

from ankusa.claim_check.check_ins import CheckIns
from ankusa.clock import unguessable
from ankusa.dispatch.dispatcher import Dispatcher
from ankusa.store.tables import Tables
from schemas import records
from schemas.records import JobRecord, Page, Takeover, Topic
from streams.kafka.bodies import Bodies
from streams.kafka.delivery import Delivery
from streams.kafka.dispatch_host import KafkaDispatchHost
from streams.kafka.fleet_log import FleetLog
from streams.kafka.folding import PartitionFold
from streams.kafka.lane_healing import LaneHealing
from streams.kafka.owned import OwnedPartitions
from streams.kafka.pack_host import KafkaPackHost
from streams.kafka.partitioning import partition_of_key
from streams.kafka.places import partition_of
from tests.contract.driven import DrivenHost, Entry
from tests.contract.kafka_log import NAMES, ContractLog, SharedProducer

FIRST = 2
"""The first partition under test: not 0, so that a seq tells its partition."""


class _NoReader:
    """Hooks that the tables have not: the suite takes them away from the log as well."""

    async def read(self, partition: int, offsets: Sequence[int]) -> dict[int, bytes]:
        return {}


class KafkaHost(DrivenHost):
    """Implements `tests.contract.host.Host`."""

    dispatch_host: KafkaDispatchHost

    def __init__(self, folder: Path, log: ContractLog, partitions: int, **dispatch: Any) -> None:
        self._log = log
        self._numbers = range(FIRST, FIRST + partitions)
        self._starts = log.ends(self._numbers)
        self._turn = 0
        self._opening = True
        self._broken: Exception | None = None
        super().__init__(folder, **dispatch)

    # -- its log --------------------------------------------------------------------

    async def _start(self) -> None:
        self._opening = True
        self._incoming: deque[tuple[Topic, Message]] = deque()
        self._folds = {number: PartitionFold(number, Tables(self._store / str(number))) for number in self._numbers}
        self._producer = SharedProducer(self._log)
        self._fleet = FleetLog(self._producer, NAMES, lambda: self.at, self.loop.time)
        self.dispatch_host = KafkaDispatchHost(self._fleet, Bodies(self._fleet, _NoReader()), lambda: False)
        check_ins = CheckIns(self.dispatch_host, self.blobs, self._pack_max_bytes, self._fleet.now, unguessable)
        self.dispatcher = Dispatcher(
            self.dispatch_host, self._sources, self._settings, self._fleet.now, lambda: 1.0, check_ins
        )
        self._count_turns()
        self._owned = OwnedPartitions()
        self._taken = asyncio.get_running_loop().create_future()
        Delivery(self._fleet, self.dispatch_host, self.dispatcher).start(self._owned)
        for topic, number in self._starts:
            following = self._folds[number].offset(topic) + 1
            self._starts[topic, number] = max(self._starts[topic, number], following)
        self._log.tail(self._starts, partial(self._took, self.loop))
        for number in self._numbers:
            await self._fleet.deliver(Topic.OUTCOMES, number, records.encode(Takeover("contract", self.at)))
        await self._taken
        self._opening = False

    def _took(self, loop: asyncio.AbstractEventLoop, topic: Topic, message: Message) -> None:
        """In the consumer's thread."""
        self._incoming.append((topic, message))
        with contextlib.suppress(RuntimeError):  # a loop that has ended
            loop.call_soon_threadsafe(self._drain)

    def _drain(self) -> None:
        try:
            self._fold_all()
        except Exception as error:  # told where the test waits, instead of letting it wait
            self._broken = error

    def _fold_all(self) -> None:
        while self._incoming:
            topic, message = self._incoming.popleft()
            number, offset, (_, at) = message.partition() or 0, message.offset() or 0, message.timestamp()
            fold = self._folds[number]
            folded = fold.fold(topic, offset, at, message.value())
            fold.sent(folded.turn, folded.turn, folded.turn, at)
            self._owned.folded(topic, number, offset)
            if folded.takeover is not None and number not in self._owned.folds:
                self._owned.assigned(fold)
                if len(self._owned.folds) == len(self._folds):
                    self._taken.set_result(None)

    def _busy(self) -> bool:
        if self._broken is not None:
            raise self._broken
        return self._opening or self._fleet.owed > 0

    @property
    def stores(self) -> Sequence[Tables]:
        return [fold.tables for fold in self._folds.values()]

    async def _commit(self, entries: list[Entry]) -> None:
        """To one partition, the next at each commit; hooks with an ordering key to that of their lane."""
        self._turn += 1
        by_partition: dict[int, list[Entry]] = {}
        for entry in entries:
            key = next((key for key in entry[0].ordering_keys if key is not None), None)
            place = self._turn if key is None else partition_of_key(key, len(self._numbers))
            by_partition.setdefault(self._numbers[place % len(self._numbers)], []).append(entry)
        for number, some in by_partition.items():
            commit = records.encode_commit(self._fleet.now(), [(envelope, body) for _, envelope, body in some])
            await self._fleet.append(Topic.HOOKS, number, commit)

    async def _command(self, record: JobRecord) -> None:
        for number in self._numbers:
            await self._fleet.append(Topic.REPLAYS, number, records.encode(record))

    async def _page(self, page: Page) -> None:
        number = partition_of(page.revivals[0].seq)
        page = msgspec.structs.replace(page, epoch=self._folds[number].epoch)
        await self._fleet.append(Topic.OUTCOMES, number, records.encode(page))

    def _close_log(self) -> None:
        self._log.stop_tail()
        for tables in self.stores:
            tables.close()

    def _pack_host(self) -> KafkaPackHost:
        return KafkaPackHost(self._fleet)

    # -- breaking it ------------------------------------------------------------------

    def sweep_lanes(self) -> None:
        async def sweep() -> None:
            healing = LaneHealing(self._fleet)
            for number in self._numbers:
                healing.add(number)
            for _ in healing.run():
                pass

        self.loop.run(sweep())
        self.settle()

    def refuse_writes(self, refuse: bool) -> None:
        """A broker that takes nothing."""
        self._producer.refuses = refuse
        self._producer.denies = False

    def refuse_writes_after_taking_them(self) -> None:
        """A broker that takes records, and whose answers are lost."""
        self._producer.denies = True


@contextlib.contextmanager
def kafka(folder: Path, log: ContractLog, partitions: int, **dispatch: Any) -> Iterator[KafkaHost]:
    host = KafkaHost(folder, log, partitions, **dispatch)
    try:
        yield host
    finally:
        host.close()
