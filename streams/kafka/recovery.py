"""Faust's recovery, where the tables are restored: in bulk, while the group's heart beats, before the streams resume.

Faust would read the changelog through its own queue, entry by entry, and go on with a warning over one that it could
not apply. Here a restore that fails ends the worker. Owns when partitions are opened; how is `partition.py`'s.
"""

from __future__ import annotations

from collections import Counter
from typing import Any, cast

from faust.tables.manager import TableManager
from faust.tables.recovery import Recovery
from faust.types import TP

from streams.kafka.changelog_reader import RestoreCancelledError
from streams.kafka.table import FoldTable


class BulkRecovery(Recovery):
    """Opens the assigned partitions and nothing else."""

    def need_recovery(self) -> bool:
        return False

    async def on_recovery_completed(self, generation_id: int = 0) -> None:
        """Restore first; then Faust seeks its streams to the committed offsets and lets them go on."""

        def cancelled() -> bool:
            return self.should_stop or self.app.consumer_generation_id != generation_id

        for table in self.tables.values():
            numbers = {tp.partition for tp in self.actives_for_table[table]}
            try:
                await cast(FoldTable, table).store.take(numbers, cancelled)
            except RestoreCancelledError:
                return  # the group has changed again: the next recovery does it
        await super().on_recovery_completed(generation_id)

    # Faust asks the brokers for these to read the changelog itself.

    async def _build_highwaters(self, consumer: Any, tps: set[TP], destination: Counter[TP], title: str) -> None:
        destination.clear()

    async def _build_offsets(self, consumer: Any, tps: set[TP], destination: Counter[TP], title: str) -> None:
        """Nothing is read by Faust."""

    async def _seek_offsets(self, consumer: Any, tps: set[TP], offsets: Counter[TP], title: str) -> None:
        """Nothing is read by Faust."""


class FoldTableManager(TableManager):
    """Faust's tables, recovered by `BulkRecovery`."""

    async def on_start(self) -> None:
        """At once: Faust gives programs a second to make their tables, in which no group would be joined. Here there is
        one, made before the app starts."""
        await self._update_channels()
        await self.recovery.start()

    @property
    def recovery(self) -> Recovery:
        if self._recovery is None:
            self._recovery = BulkRecovery(self.app, self, beacon=self.beacon, loop=self.loop)
        return self._recovery
