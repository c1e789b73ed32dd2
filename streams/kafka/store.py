"""Faust's store of the tables: the partitions that this worker has open, each in a directory of its own.

Owns opening and closing them as the group says, and that no two of them are of one partition. Reads and writes go to
the partitions' own tables, so what Faust asks of a key-value store is refused.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Iterable
from typing import Any

from faust.stores.base import Store
from faust.types import TP

from ankusa.store.errors import StoreError
from schemas.records import Topic
from streams.kafka.changelog_reader import RestoreCancelledError
from streams.kafka.ends import Ends, read_ends, too_early
from streams.kafka.in_turn import InTurn
from streams.kafka.membership import Membership
from streams.kafka.owned import OwnedPartitions
from streams.kafka.partition import Opening, Partition
from streams.kafka.unbroken import Unbroken

log = logging.getLogger("ankusa.kafka")


LAGS_S = 10.0
AGAIN_S = 0.5

RESTORES = 4
"""Partitions that are restored at once: more take no less time, since one core does the work, and 16 MiB each."""


class FoldStore(Store[bytes, bytes]):
    """The open partitions, by number."""

    def __init__(self, *given: Any, opening: Opening, owned: OwnedPartitions, **more: Any) -> None:
        super().__init__(*given, **more)
        self.partitions: dict[int, Partition] = {}
        self.in_turn: dict[int, InTurn] = {}
        self.unbroken: dict[int, Unbroken] = {}
        self._opening = opening
        self._owned = owned
        # A restore that was given up still has its store open until its thread has seen it.
        self._one_at_a_time = asyncio.Lock()
        self._restores = asyncio.Semaphore(RESTORES)
        self._closing: dict[int, asyncio.Future[None]] = {}
        self._ending = asyncio.Event()
        self.on_lost: Callable[[Partition], None] = lambda partition: None
        self.on_room: Callable[[Partition], None] = lambda partition: None
        self.membership = Membership()
        """It hears when the brokers were asked about all that is open."""

    # -- what the group says -----------------------------------------------------

    async def on_rebalance(
        self, assigned: set[TP], revoked: set[TP], newly_assigned: set[TP], generation_id: int = 0
    ) -> None:
        """Close what is not assigned any more. Nothing is opened here: the group waits for this to return."""
        kept = {tp.partition for tp in assigned if self._is_changelog(tp)}
        await self._close(set(self.partitions) - kept)

    async def take(self, numbers: Collection[int], cancelled: Callable[[], bool]) -> None:
        """Have exactly `numbers` open. One that somebody else has owned meanwhile is opened again. Raises
        RestoreCancelledError, and StoreError when one cannot be opened; those that can be are open then."""

        def given_up() -> bool:
            return self._ending.is_set() or cancelled()

        async with self._one_at_a_time:
            joins = self.membership.joins  # of a join that comes meanwhile nothing is said
            await self._close(set(self.partitions) - set(numbers))
            known = [self.partitions[number] for number in numbers if number in self.partitions]
            owned = await self._asked(known)
            await self._close([partition.number for partition, still in zip(known, owned, strict=True) if not still])
            self.membership.confirm(joins)
            missing = [number for number in numbers if number not in self.partitions]
            opened = await asyncio.gather(*(self._open(number, given_up) for number in missing), return_exceptions=True)
        # What cannot be opened is told before what was given up because of it.
        failures = [failure for failure in opened if failure is not None]
        failures.sort(key=lambda failure: isinstance(failure, RestoreCancelledError))
        for failure in failures:
            raise failure

    async def _asked(self, partitions: Iterable[Partition]) -> list[bool]:
        """Whether each is still owned. Waits for brokers, but not past the worker's end: raises RestoreCancelledError
        then."""
        answers = asyncio.gather(*(partition.still_owned() for partition in partitions))
        ends = asyncio.ensure_future(self._ending.wait())
        try:
            await asyncio.wait((answers, ends), return_when=asyncio.FIRST_COMPLETED)
            if not answers.done():
                raise RestoreCancelledError("the worker ends")
            return answers.result()
        finally:
            answers.cancel()
            ends.cancel()

    def give_up(self) -> None:
        """The worker ends: open nothing more, and wait for no broker."""
        self._ending.set()

    async def _open(self, number: int, cancelled: Callable[[], bool]) -> None:
        async with self._restores:
            if (closing := self._closing.get(number)) is not None:
                await asyncio.wait((closing,))
            partition = await Partition.open(self._opening, number, cancelled)
            try:
                # After every owner of before was refused: what those have folded is there by now.
                ends = await self._ends(partition, cancelled)
                partition.know_topics()
            except BaseException:
                await self._let_go((partition,))
                raise
        if ends is None or cancelled():
            await self._let_go((partition,))
            raise RestoreCancelledError(f"partition {number}")
        partition.on_lost = lambda lost: self.on_lost(lost)
        partition.sender.on_room = lambda: self.on_room(partition)
        self.unbroken[number] = Unbroken(partition.fold.offset)
        self.in_turn[number] = InTurn(number, ends.last_hooks, lambda: partition.fold.offset(Topic.HOOKS))
        self.partitions[number] = partition

    async def _ends(self, partition: Partition, cancelled: Callable[[], bool]) -> Ends | None:
        """Raises StoreError where a topic ends before what the tables have of it: what is written there now would have
        the offsets of what is folded already, and be taken for it. A broker that has just begun to lead may know an
        older end for a moment."""
        deadline_s = time.monotonic() + LAGS_S
        while True:
            ends = await asyncio.get_running_loop().run_in_executor(
                self._opening.executor, read_ends, self._opening.config, partition.number, cancelled
            )
            wrong = None if ends is None else too_early(partition.fold, ends)
            if wrong is None:
                return ends
            if time.monotonic() > deadline_s:
                raise StoreError(wrong)
            await asyncio.sleep(AGAIN_S)

    async def _close(self, numbers: Iterable[int]) -> None:
        """Close partitions: whoever reads them is told first."""
        # One may have gone meanwhile: a rebalance does not wait for a restore of the one before.
        gone = [self.partitions.pop(number) for number in list(numbers) if number in self.partitions]
        for partition in gone:
            self.in_turn.pop(partition.number, None)
            self.unbroken.pop(partition.number, None)
            self._owned.revoked(partition.number)
        await self._let_go(gone)

    async def _let_go(self, partitions: Collection[Partition]) -> None:
        """Close partitions, to the end although whoever waits is cancelled: the group may give them back at once, and
        they are opened again once they are closed."""
        closing = {partition.number: asyncio.ensure_future(partition.close()) for partition in partitions}
        self._closing |= closing
        await asyncio.gather(*map(asyncio.shield, closing.values()))

    async def drained(self, within_s: float) -> None:
        """Wait until the changelog has what was folded, as far as that goes in time."""
        await asyncio.gather(*(partition.sender.drained(within_s) for partition in self.partitions.values()))

    async def on_stop(self) -> None:
        async with self._one_at_a_time:
            await self._close(list(self.partitions))

    def _is_changelog(self, tp: TP) -> bool:
        return tp.topic in self.table.changelog_topic.topics

    # -- what Faust asks of a store ----------------------------------------------------

    def persisted_offset(self, tp: TP) -> int | None:
        """Faust reads no changelog here (`recovery.py`), so it needs no offset."""
        return None

    async def need_active_standby_for(self, tp: TP) -> bool:
        return False

    def apply_changelog_batch(self, batch: Iterable[Any], to_key: Any, to_value: Any) -> None:
        """What Faust's consumer is handed of the changelog amid a rebalance is dropped: the restore alone reads it, and
        an entry applied again would bring back what has gone."""

    async def backup_partition(self, tp: Any, flush: bool = True, purge: bool = False, keep: int = 1) -> None:
        raise NotImplementedError("the changelog is the copy")

    def restore_backup(self, tp: Any, latest: bool = True, backup_id: int = 0) -> None:
        raise NotImplementedError("the changelog is the copy")

    def reset_state(self) -> None:
        """Nothing is held here that a partition's own directory does not have."""

    def __bool__(self) -> bool:
        """There, however many partitions it has: Faust's stores are mappings."""
        return True
