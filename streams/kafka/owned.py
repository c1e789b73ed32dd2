"""The partitions that this worker owns: who may read their tables, and who is told when they come, go or change.

A partition is here from when this worker may act for it (its tables are restored, its takeover is folded, so that what
an owner of before has said is folded too) until it is about to go. Callbacks run on the event loop, return at once and
never raise; whoever holds tables of a partition, an iterator of theirs or a reference to their index lets go of it
before `revoked` returns, since a handle that lives on keeps the store's lock.

Owns the list and its order; never opens or closes tables, and never folds.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from types import MappingProxyType

from ankusa.store.tables import Tables
from schemas.records import Topic
from streams.kafka.folding import PartitionFold

Assigned = Callable[[PartitionFold], None]
Revoked = Callable[[int], None]
Stalled = Callable[[int, bool], None]
FoldedAt = Callable[[Topic, int, int], None]
StillOwned = Callable[[int], Awaitable[bool]]


class OwnedPartitions:
    """`folds` and `tables` are by partition, and live: read them at each use."""

    def __init__(self) -> None:
        self._folds: dict[int, PartitionFold] = {}
        self._tables: dict[int, Tables] = {}
        self.folds: Mapping[int, PartitionFold] = MappingProxyType(self._folds)
        self.tables: Mapping[int, Tables] = MappingProxyType(self._tables)
        self._on_assigned: list[Assigned] = []
        self._on_revoked: list[Revoked] = []
        self._on_folded: list[FoldedAt] = []
        self._on_stalled: list[Stalled] = []
        self._stalled: set[int] = set()
        self.still_owned: StillOwned = _nobody_asked
        """Ask the brokers whether a partition is still this worker's: what cannot be undone is done after that. False
        too where they do not answer within some seconds."""
        self.doubtful: Callable[[], bool] = _nobody_heard
        """Whether all of them may be another's by now, as far as this worker has heard: no attempt begins then."""

    # -- for those who read ---------------------------------------------------

    def on_assigned(self, told: Assigned) -> None:
        """Call `told` with the fold of each partition that is owned now or later. Its `tables` may be read, its rows
        claimed; its `epoch` is what pages of this owner carry; its `at` is the log time."""
        self._on_assigned.append(told)
        for fold in list(self._folds.values()):
            told(fold)

    def on_revoked(self, told: Revoked) -> None:
        """Call `told` with each partition that is about to go. Its attempts may go on: their outcomes are folded by
        whoever owns it next, while their rows' generations hold."""
        self._on_revoked.append(told)

    def on_folded(self, told: FoldedAt) -> None:
        """Call `told(topic, partition, offset)` when that record has been folded, or set aside, into an owned
        partition: what follows from it is in the tables."""
        self._on_folded.append(told)

    def on_stalled(self, told: Stalled) -> None:
        """Call `told(partition, True)` when nothing more is folded into an owned partition, because its changelog takes
        nothing, and `told(partition, False)` when it goes on. One that comes goes on."""
        self._on_stalled.append(told)

    # -- for those who fold -----------------------------------------------------

    def assigned(self, fold: PartitionFold) -> None:
        """This worker may act for the partition from now on."""
        assert fold.partition not in self._folds
        self._folds[fold.partition] = fold
        self._tables[fold.partition] = fold.tables
        for told in self._on_assigned:
            told(fold)

    def revoked(self, partition: int) -> None:
        """The partition is about to go; its tables are closed next. Does nothing for one that is not owned."""
        if self._folds.pop(partition, None) is None:
            return
        del self._tables[partition]
        self._stalled.discard(partition)
        for told in self._on_revoked:
            told(partition)

    def folded(self, topic: Topic, partition: int, offset: int) -> None:
        """A record was folded."""
        if partition in self._folds:
            for told in self._on_folded:
                told(topic, partition, offset)

    def stalled(self, partition: int, now: bool) -> None:
        """Whether records of a partition wait for its changelog `now`."""
        if partition in self._folds and now != (partition in self._stalled):
            (self._stalled.add if now else self._stalled.discard)(partition)
            for told in self._on_stalled:
                told(partition, now)


def _nobody_heard() -> bool:
    return True


async def _nobody_asked(partition: int) -> bool:
    return False
