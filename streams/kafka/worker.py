"""A worker's fold as one thing that is started and stopped: the Faust app, its table, and the partitions it owns.

Run by itself (`python -m streams.kafka.worker --config FILE`) it folds and delivers nothing: the services that deliver
subscribe to `owned` (`worker_process.py`). Owns the takeover of partitions: each that was opened is claimed by a record
in its outcomes, and is `owned` once that record is folded, since all that an owner of before has said lies before it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import sys
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NoReturn

from ankusa.clock import now_ms, unguessable
from ankusa.store.errors import StoreError
from ankusa.store.memory import StoreMemory
from ankusa.store.tables import Tables
from ankusa.supervisor import FATAL_EXIT
from schemas import records
from schemas.config import Config
from schemas.records import Takeover, Topic
from streams.edge import Stop
from streams.kafka.agents import add_agents
from streams.kafka.app import build_app, build_table, folded_topics
from streams.kafka.clients import OncePerKind
from streams.kafka.id_reader import IdReader
from streams.kafka.log_producer import LogProducer, open_producer
from streams.kafka.membership import Membership
from streams.kafka.owned import OwnedPartitions
from streams.kafka.partition import Opening, Partition
from streams.kafka.process import begin
from streams.kafka.topic_admin import topics_fit
from streams.kafka.topic_ids import made_again
from streams.kafka.topics import TopicNames, misnumbered

log = logging.getLogger("ankusa.kafka")

REVOKED_S = 2.0
"""At the start of a rebalance, for transactions that are on their way: what is committed is not folded again."""

LOST_S = 20.0
"""A partition whose changelog is another's goes with the next rebalance, within a session's time. One that stays is
claimed by two fleets at once, and the worker ends."""

ASKED_S = 5.0
"""How long a sweep waits to hear whether a partition is still owned. A transaction takes some tens of milliseconds, and
a leader that changes in order a second or two; in a longer outage the sweep's next pass asks again."""

LEAVE_S = 8.0
"""For leaving the group, which takes a tenth of a second where a broker answers."""

ENDS_S = 22.0
"""For all steps of a stop: attempts have ten seconds of it. `ankusa serve` kills a process after 25 s."""

AGAIN_S = 1.0

LOOK_S = 5.0
"""Between looks at the topics: one request. For so long hooks of a topic that was made again may be folded, or taken
for repeats of the one before."""

QUIET = ("faust", "mode", "aiokafka", "streams.kafka")
"""Loggers of Faust and its parts, which name those after the module of a subclass: what they tell at `info` is for
those who work on them."""

REPEATING = (
    "aiokafka",
    *(f"aiokafka.{name}" for name in ("client", "conn", "consumer.group_coordinator", "consumer.fetcher")),
)

FAILED_EXIT = 1


class Worker:
    """One worker's fold. Subscribe to `owned` before `start`."""

    def __init__(self, config: Config, producer: LogProducer) -> None:
        """`producer` writes takeovers; its owner closes it."""
        self._config = config
        self._producer = producer
        self._loop = asyncio.get_running_loop()
        self.owner = f"{os.uname().nodename}-{os.getpid()}-{unguessable():016x}"
        self.owned = OwnedPartitions()
        # A thread for each partition, and as many that may still wait for a broker after theirs has gone.
        self._executor = ThreadPoolExecutor(2 * config.kafka.partitions, thread_name_prefix="ankusa-partition")
        memory = StoreMemory.shared(config.kafka.partitions)
        self._ids = IdReader(config)
        opening = Opening(config, self.owner, lambda path: Tables(path, memory), self._executor, self._ids)
        self._membership = Membership()
        self.app = build_app(config, self._membership, self._following)
        self.table = build_table(self.app, config, opening, self.owned)
        add_agents(self.app, folded_topics(self.app, config), self.table, self.fail)
        self.app.on_partitions_revoked.connect(self._revoking, weak=False)
        self.app.on_rebalance_complete.connect(self._recovered, weak=False)
        self.owned.still_owned = self._still_owned
        self.owned.doubtful = self._membership.doubtful
        self._failed: asyncio.Future[str] = self._loop.create_future()
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Join the group. Partitions come as it gives them."""
        self.table.failed = self.fail
        self.table.store.on_lost = self._lost
        self.table.store.on_room = self.table.room
        self.table.store.membership = self._membership
        self._tasks = [self._loop.create_task(each) for each in (self._run_app(), self._watch_topics())]
        for task in self._tasks:
            task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self.fail(f"{type(error).__name__}: {error}")

    async def _run_app(self) -> None:
        try:
            await self.app.start()
            await self.app.wait_until_stopped()
        except Exception as error:
            self.fail(f"{type(error).__name__}: {error}")
        reason = self.app.crash_reason
        self.fail("the app has ended" if reason is None else f"{type(reason).__name__}: {reason}")

    def fail(self, reason: str) -> None:
        """Nothing may go on: whoever waits for `failed` hears why. The first reason stands."""
        if not self._failed.done():
            self._failed.set_result(reason)

    async def failed(self) -> str:
        """Why the worker must end, once it must."""
        return await asyncio.shield(self._failed)

    async def stop(self) -> None:
        """Leave the group, with the changelog complete as far as brokers take it."""
        await self.table.store.drained(REVOKED_S)
        self.table.store.give_up()
        try:
            async with asyncio.timeout(LEAVE_S):
                await self.app.stop()
        except TimeoutError:  # no broker answers; the group sees for itself, a session later
            log.warning("event=group_not_left")
        await self.table.store.stop()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._executor.shutdown(wait=False, cancel_futures=True)

    # -- partitions that come and go --------------------------------------------------

    async def _revoking(self, app: Any, /, *_: Any, signal: Any, **__: Any) -> None:
        await self.table.store.drained(REVOKED_S)

    async def _recovered(self, app: Any, /, *_: Any, signal: Any, **__: Any) -> None:
        for partition in self.table.store.partitions.values():
            if not partition.takeover_sent:
                partition.takeover_sent = True
                self._take_over(partition)

    def _take_over(self, partition: Partition) -> None:
        if partition.lost is not None:
            return

        def delivered(offset: int | None, reason: str) -> None:
            if offset is None:
                log.warning("event=takeover_again partition=%d reason=%s", partition.number, reason)
                self._loop.call_later(AGAIN_S, self._take_over, partition)

        topic, at = TopicNames(self._config.kafka.prefix).outcomes, now_ms()
        value = records.encode(Takeover(partition.owner, at))
        try:
            self._producer.send(topic, partition.number, value, None, at, delivered)
        except StoreError as error:
            delivered(None, str(error))

    def _following(self, topic: Topic, number: int) -> int | None:
        partition = self.table.store.partitions.get(number)
        return None if partition is None else partition.fold.offset(topic) + 1

    async def _still_owned(self, number: int) -> bool:
        """False too where nobody answers within `ASKED_S`, as for a changelog without a leader: other partitions wait
        behind this one."""
        partition = self.table.store.partitions.get(number)
        if partition is None:
            return False
        try:
            return await asyncio.wait_for(partition.still_owned(), ASKED_S)
        except TimeoutError:
            log.warning("event=ownership_unanswered partition=%d", number)
            return False

    async def _watch_topics(self) -> None:
        """End the worker when one of its topics was made again, or has other partitions: the group would no longer give
        one worker a number of every topic. What does not answer, or is gone, is asked for again: nothing of it is
        folded meanwhile."""
        wanted = self._config.kafka.partitions
        while True:
            await asyncio.sleep(LOOK_S)
            with contextlib.suppress(StoreError):
                found = await self._loop.run_in_executor(self._executor, self._ids.look)
                for topic, partitions in found.partitions.items():
                    if (wrong := misnumbered(partitions, wanted)) is not None:
                        self.fail(f"{topic} {wrong}")
                for partition in list(self.table.store.partitions.values()):
                    if (wrong := made_again(partition.ids, found.ids)) is not None:
                        partition.lose(wrong)
                        self.fail(f"partition {partition.number}: {wrong}")

    def _lost(self, partition: Partition) -> None:
        self.owned.revoked(partition.number)

        def still_here() -> None:
            if self.table.store.partitions.get(partition.number) is partition:
                self.fail(f"partition {partition.number}: {partition.lost}")

        self._loop.call_later(LOST_S, still_here)


def quiet_faust(config: Config) -> None:
    """Keep Faust's own progress out of the log, unless `log.level` is `debug`, and its tries at a broker that is away
    to one line of a kind a minute."""
    if config.log.level != "debug":
        for name in QUIET:
            logging.getLogger(name).setLevel(logging.WARNING)
        for name in REPEATING:
            logging.getLogger(name).addFilter(OncePerKind())


async def run(config: Config, parent: int) -> int:
    """Fold until SIGTERM, SIGINT, the death of `parent` or what must not go on; the exit status."""
    stop = Stop(parent)
    if not await topics_fit(config):
        return FATAL_EXIT
    producer = LogProducer(lambda: open_producer(config.kafka))
    worker = Worker(config, producer)
    worker.owned.on_assigned(lambda fold: log.info("event=partition_owned partition=%d", fold.partition))
    worker.owned.on_revoked(lambda number: log.info("event=partition_revoked partition=%d", number))
    worker.start()
    ends = asyncio.create_task(_ends(worker))
    status = await stop.wait(ends)
    ends.cancel()

    async def stopping() -> None:
        await worker.stop()
        await producer.close()

    await end_in_time(stopping(), status)
    return status


async def end_in_time(stopping: Coroutine[Any, Any, None], status: int) -> None:
    """Take the steps of a stop. Where they take longer than `ENDS_S` the process ends with `status` amid them, which
    costs what a kill would: each waits for brokers, and without them their waits add up."""
    steps = asyncio.ensure_future(stopping)
    await asyncio.wait((steps,), timeout=ENDS_S)
    if not steps.done():
        log.warning("event=stop_cut_short after_ms=%d", ENDS_S * 1000)
        leave(status)
    steps.result()


async def _ends(worker: Worker) -> int:
    log.critical("event=worker_failed reason=%s", await worker.failed())
    return FAILED_EXIT


def prepare(config: Config) -> None:
    """What a worker needs before it is built."""
    quiet_faust(config)
    Path(config.node.data_dir).mkdir(parents=True, exist_ok=True)


def leave(status: int) -> NoReturn:
    """End the process, and from within its event loop: a thread that is left waits for brokers that do not answer, and
    both the loop's end and Python's would wait for it."""
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


async def _run(config: Config, _: str | None, parent: int) -> int:
    prepare(config)
    leave(await run(config, parent))


if __name__ == "__main__":
    leave(begin("worker", _run))
