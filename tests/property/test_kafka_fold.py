"""One fold on every host: what the embedded one recorded gives the same tables in a partition, whatever happens there.

The records are those of `test_fold.py`, any sequence of them: commits, outcomes, pages, commands, lanes, the pen. They
are folded as a partition's, once; twice; through workers that die between a batch and its changelog, with and without
their disk; and out of the changelog alone.
"""

from __future__ import annotations

import random  # noqa: TID251 - seeded by what is drawn
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize

from ankusa.store import keys
from ankusa.store.due import DueIndex
from ankusa.store.tables import Tables
from streams.kafka.changelog import Entry
from streams.kafka.folding import PartitionFold
from tests.property.changelog import Record, Worker, recorded, run
from tests.property.refold import FOLDED, content
from tests.property.test_fold import FoldMachine

IN_A_PARTITION = sorted(set(FOLDED) - {"sources", "routes"})
"""What operators set up is one table of the whole fleet: a partition sets such a record aside, and counts its turn."""

IN_A_CHANGELOG = sorted(set(IN_A_PARTITION) - {"hooks"})
"""Bodies are not: the topic has them."""


class PartitionMachine(FoldMachine):
    """`test_fold.py`'s machine, whose log is folded by partitions in the end."""

    chance = random.Random(0)
    # An outcome of a generation that is to come counts when it is published again then: that is not what is asked here.
    publish_the_last_again = None

    @initialize(seed=st.integers(0, 1 << 32))
    def choose(self, seed: int) -> None:
        # Which worker dies when is chosen at the end, where nothing can be drawn.
        self.chance = random.Random(seed)

    def a_refold_is_the_same(self) -> None:
        log = recorded(self.log)
        self._folded_twice(log)
        self._through_deaths(log, shuffled=False)
        self._through_deaths(log, shuffled=True)

    def _folded_twice(self, log: list[Record]) -> None:
        path = self.folder / f"twice-{self.chance.random()}"
        tables = Tables(path)
        fold = PartitionFold(0, tables)
        for record in log:
            assert not fold.fold(*record).skipped
        for record in log:
            assert fold.fold(*record).skipped
        self._equal(tables, IN_A_PARTITION)
        tables.close()

    def _through_deaths(self, log: list[Record], *, shuffled: bool) -> None:
        """In the order of the log the tables are those of the embedded host; in any, those of the changelog are those
        of the last owner."""
        folder = self.folder / f"deaths-{shuffled}-{self.chance.random()}"
        changelog: list[Entry] = []
        workers = [Worker(folder / name, changelog, name) for name in "abc"]
        last = run(workers, log, self.chance.randrange, shuffled=shuffled)
        wanted, counts = content(last.tables), dict(last.tables.counts.by_sink)
        if not shuffled:
            self._equal(last.tables, IN_A_CHANGELOG)
        last.die()
        # As a topic that was compacted: of each key the last entry, in their order.
        last_place = {key: place for place, (key, _) in enumerate(changelog)}
        compacted = [changelog[place] for place in sorted(last_place.values())]
        for name, entries in (("new", changelog), ("compacted", compacted)):
            tables = self._restored(folder / name, entries)
            found = content(tables)
            for family in IN_A_CHANGELOG:
                assert found[family] == wanted[family], family
            assert tables.counts.by_sink == counts
            tables.close()

    @staticmethod
    def _restored(path: Path, changelog: list[Entry]) -> Tables:
        worker = Worker(path, changelog, path.name)
        worker.start(5)
        return worker.tables

    def _equal(self, tables: Tables, families: list[str]) -> None:
        live, found = content(self.log.tables), content(tables)
        for family in families:
            assert found[family] == live[family], family
        assert tables.counts.by_sink == self.log.tables.counts.by_sink
        for row_class, index in ((keys.LIVE, tables.live), (keys.REPLAYED, tables.replayed)):
            there = DueIndex(tables.database, row_class).next_due_at()
            told = index.next_due_at()
            assert there is None or (told is not None and told <= there)


TestPartitionFold = PartitionMachine.TestCase
TestPartitionFold.settings = settings(max_examples=6, stateful_step_count=25)
