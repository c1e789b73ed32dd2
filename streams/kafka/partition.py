"""One partition that this worker owns: its store, its fold and its changelog, opened and closed together.

Opening, in order: (1) fence every owner of before, (2) ask for the ids of the topics, (3) restore the store from the
changelog, (4) send what the store has and the changelog does not. Closing, in order: (1) send what waits, (2) let go of
the producer, (3) close the store. A fold that failed is final: nothing is folded over a gap. Never reads a topic but
the changelog.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from concurrent.futures import Executor
from pathlib import Path
from typing import NamedTuple

from ankusa.clock import now_ms, unguessable
from ankusa.store.errors import StoreError
from ankusa.store.tables import Tables
from schemas.config import Config
from schemas.records import Topic
from streams.kafka.changelog_reader import ChangelogReader, RestoreCancelledError
from streams.kafka.clients import Seldom
from streams.kafka.folding import Folded, PartitionFold
from streams.kafka.id_reader import IdReader
from streams.kafka.restoring import Changelog, Restore, owner_entry, read_state
from streams.kafka.sender import Acknowledge, Sender
from streams.kafka.topic_admin import CHECK_REQUEST_S, ClusterError, TopicAdmin
from streams.kafka.topic_ids import CHANGELOG, TopicIds, ids_entry, known_ids, known_next, put_ids, taken_over

log = logging.getLogger("ankusa.kafka")

ENTRY_OVERHEAD_BYTES = 1024
"""Of a batch of records around a changelog entry: some 80 bytes."""

RETRY_S = 0.2

CLOSE_S = 2.0
"""How long a partition that goes waits for its last transaction. What is not sent then, the next owner folds again."""


class Opening(NamedTuple):
    """What it takes to open partitions: shared by all of a worker."""

    config: Config
    owner: str
    open_tables: Callable[[Path], Tables]
    executor: Executor
    ids: IdReader

    def path(self, number: int) -> Path:
        return Path(self.config.node.data_dir) / "partitions" / str(number)


class Partition:
    """An open partition, whose topics have `ids`. `lost` is why it must not be used any more, None while all is
    well."""

    def __init__(self, number: int, fold: PartitionFold, ids: TopicIds, sender: Sender, owner: str) -> None:
        self.number = number
        self.ids = ids
        self.fold = fold
        self.sender = sender
        self.owner = owner
        self.lost: str | None = None
        self.takeover_sent = False
        self.on_lost: Callable[[Partition], None] = lambda partition: None
        sender.lost = self.lose

    @classmethod
    async def open(cls, opening: Opening, number: int, cancelled: Callable[[], bool]) -> Partition:
        """Open partition `number`. Raises RestoreCancelledError, and StoreError when it cannot be."""
        # New each time: a takeover of an earlier time, which may be read again, is none of this one.
        owner = f"{opening.owner}-{unguessable():016x}"
        sender = Sender(opening.config, number, opening.executor)
        restored = asyncio.get_running_loop().run_in_executor(
            opening.executor, _restored, opening, number, owner, sender, cancelled
        )
        try:
            fold, ids = await asyncio.shield(restored)
        except BaseException:
            # The thread goes on until it sees that; nobody may open the store before it has let go of it.
            await asyncio.gather(restored, return_exceptions=True)
            if restored.exception() is None:
                restored.result()[0].tables.close()
            await sender.close(0)
            raise
        partition = cls(number, fold, ids, sender, owner)
        turn = read_state(fold.tables).turn
        sender.start(turn, owner_entry(turn, owner), partition._sent)
        for unsent, entries in list(fold.unsent()):
            sender.add(unsent, entries, _nobody)
        return partition

    def know_topics(self) -> None:
        """Have the tables know their topics from now on, on this disk and any other. Raises StoreError when one was
        made again since they were folded from it."""
        known = known_ids(self.fold.tables)
        if (wrong := taken_over(known, self.ids)) is not None:
            raise StoreError(f"partition {self.number}: {wrong}")
        self.ids = known_next(known, self.ids)
        put_ids(self.fold.tables, self.ids)
        if self.sender.failed is None:
            self.sender.add(self.fold.turn, [ids_entry(self.ids)], _nobody)

    @property
    def may_take(self) -> bool:
        """Whether a record may be folded now: not while too much waits for the changelog. One that is lost takes
        records, and folds none."""
        return self.lost is not None or self.sender.has_room

    def take(
        self, topic: Topic, offset: int, timestamp_ms: int, value: bytes | None, acknowledge: Acknowledge
    ) -> Folded | None:
        """Fold a record, and `acknowledge` it when its entries are in the changelog. None when the partition is lost:
        its next owner folds the record. Raises StoreError when the store refuses."""
        if self.lost is not None or self.sender.failed is not None:
            return None
        try:
            folded = self.fold.fold(topic, offset, timestamp_ms, value)
        except BaseException as error:
            self.lose(f"record {offset} of {topic.name.lower()}[{self.number}] was not folded: {error}")
            raise
        self.sender.add(folded.turn, folded.entries, acknowledge)
        return folded

    async def still_owned(self) -> bool:
        """Whether nobody else has owned the partition since it was opened, by the brokers' word."""
        return self.lost is None and await self.sender.probe(owner_entry(self.sender.turn, self.owner))

    def _sent(self, first: int, last: int, following: int) -> None:
        self.fold.sent(first, last, following, now_ms())

    def lose(self, reason: str) -> None:
        """Fold and send nothing more."""
        if self.lost is None:
            self.lost = reason
            log.error("event=partition_lost partition=%d reason=%s", self.number, reason)
            self.on_lost(self)

    async def close(self) -> None:
        """Let go of the partition. Nobody may hold an iterator of its store."""
        self.lost = self.lost or "closed"
        await self.sender.close(CLOSE_S)
        self.fold.tables.close()


def _nobody() -> None:
    """Who waits for entries that no record has just made."""


def _restored(
    opening: Opening, number: int, owner: str, sender: Sender, cancelled: Callable[[], bool]
) -> tuple[PartitionFold, TopicIds]:
    """Steps 1 to 3, in a thread."""
    began = time.monotonic()
    if not sender.fence(cancelled) or (ids := opening.ids.wait(cancelled)) is None:
        raise RestoreCancelledError(f"partition {number}")
    entry_bytes = _largest_entry(opening, cancelled) - ENTRY_OVERHEAD_BYTES
    reader = ChangelogReader(opening.config, number, cancelled)
    try:
        changelog = Changelog(reader.name, reader.begins(), ids.get(CHANGELOG))
        restore = Restore(opening.path(number), opening.open_tables, now_ms(), changelog)
        try:
            reader.feed(restore)
            fold = PartitionFold(number, restore.finish(owner), entry_bytes)
        except BaseException:
            restore.tables.close()
            raise
    finally:
        reader.close()
    log.info(
        "event=partition_restored partition=%d entries=%d turn=%d ms=%d",
        *(number, restore.applied, fold.turn, (time.monotonic() - began) * 1000),
    )
    return fold, ids


def _largest_entry(opening: Opening, cancelled: Callable[[], bool]) -> int:
    """What the changelog takes, by its brokers' word: other nodes may have larger limits than this one. In a thread.
    Raises RestoreCancelledError, and StoreError when they refuse to say."""
    admin, told = TopicAdmin(opening.config, CHECK_REQUEST_S), Seldom()
    while not cancelled():
        try:
            return admin.largest_entry()
        except ClusterError as error:
            if error.refused:
                raise StoreError(str(error)) from error
            if told.due():
                log.warning("event=changelog_waits reason=%s", error)
            time.sleep(RETRY_S)
    raise RestoreCancelledError("a partition")
