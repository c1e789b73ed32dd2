"""Ids and attempts past their time: gone from the tables, from the changelog, and from what is restored of it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from ankusa.store.tables import Tables
from schemas import records
from schemas.config import Http
from schemas.records import HistoryExpiry, Outcome, OutcomeBatch, OutcomeKind, Topic
from streams.kafka import history
from streams.kafka.changelog import PACKED, Entry
from streams.kafka.folding import PartitionFold
from streams.kafka.partition import ENTRY_OVERHEAD_BYTES
from streams.kafka.restoring import Restore, owner_entry
from streams.kafka.topics import hook_record_bytes
from tests.kafka.cluster import configuration
from tests.property.refold import content
from tests.unit.kafka.records import PARTITION, Partition, hooks
from tests.unit.store.entries import AT

DAY_MS = 86_400_000
FAMILIES = ("ids", "attempts", "rows")
FIRST = owner_entry(0, "first")


class Kept:
    """A partition, and all that its fold has told the changelog."""

    def __init__(self, path: Path) -> None:
        self.partition = Partition(path)
        self.changelog: list[Entry] = [FIRST]

    def add(self, topic: Topic, value: bytes, at: int = AT) -> None:
        self.changelog += self.partition.add(topic, value, at).entries

    def settle(self, kind: OutcomeKind, *names: str, at: int = AT, generation: int = 0) -> None:
        items = (Outcome(self.partition.seq(name), 0, generation, kind, at, at, 1, error="gone") for name in names)
        self.add(Topic.OUTCOMES, records.encode(OutcomeBatch(tuple(items))), at)

    def expire(self, before: int, at: int = AT + 30 * DAY_MS) -> None:
        self.add(Topic.OUTCOMES, records.encode(HistoryExpiry(before)), at)

    def ids(self) -> set[str]:
        return {key.decode() for key in content(self.partition.tables)["ids"]}

    def attempts(self, name: str) -> int:
        return len(self.partition.tables.attempts_of(self.partition.seq(name)))

    def compacted(self) -> list[Entry]:
        last = {key: place for place, (key, _) in enumerate(self.changelog)}
        return [self.changelog[place] for place in sorted(last.values()) if self.changelog[place][1] is not None]

    def same_as_restored(self, folder: Path) -> None:
        """Out of the changelog, whole and compacted, in small parts and at once."""
        wanted = content(self.partition.tables)
        for name, entries, size in (
            ("parts", self.changelog, 1),
            ("whole", self.changelog, len(self.changelog)),
            ("compacted", self.compacted(), 3),
        ):
            tables = restored(folder / name, entries, size)
            found = content(tables)
            for family in FAMILIES:
                assert found[family] == wanted[family], (name, family)
            for family in PACKED:
                notes = [list(history.oldest(one.database, family)) for one in (tables, self.partition.tables)]
                assert notes[0] == notes[1], (name, family)
            tables.close()


def restored(path: Path, entries: list[Entry], size: int) -> Tables:
    restore = Restore(path, Tables, AT)
    for start in range(0, len(entries), size):
        part = entries[start : start + size]
        assert restore.take(part, start + len(part))
    return restore.finish("next")


@pytest.fixture
def kept(tmp_path: Path) -> Iterator[Kept]:
    made = Kept(tmp_path / "7")
    yield made
    made.partition.tables.close()


def test_what_is_old_and_without_a_row_goes_and_the_rest_stays(kept: Kept, tmp_path: Path) -> None:
    kept.add(Topic.HOOKS, hooks("done", "dead", "waits"))
    kept.add(Topic.HOOKS, hooks("young"), AT + DAY_MS)
    kept.settle(OutcomeKind.RETRY, "done", "dead", "waits")
    kept.settle(OutcomeKind.DELIVERED, "done", generation=1)
    kept.settle(OutcomeKind.DEAD, "dead", generation=1)
    kept.settle(OutcomeKind.DELIVERED, "young", at=AT + DAY_MS)
    done = kept.partition.seq("done")
    kept.expire(AT)  # nothing is older than itself
    assert kept.ids() == {"done", "dead", "waits", "young"}
    kept.expire(AT + 1)
    assert kept.ids() == {"dead", "waits", "young"}
    assert kept.partition.tables.attempts_of(done) == []
    assert [kept.attempts(name) for name in ("dead", "waits", "young")] == [2, 1, 1]
    assert kept.partition.fold.figures.gone == {"ids": 1, "attempts": 2}
    assert not any(b"done" in (value or b"") for _, value in kept.compacted())
    assert not any(key.startswith(b"mlocal/") for key, _ in kept.changelog)
    kept.same_as_restored(tmp_path / "restored")


def test_what_had_a_row_goes_when_its_new_pack_is_old(kept: Kept, tmp_path: Path) -> None:
    kept.add(Topic.HOOKS, hooks("a", "b"))
    kept.settle(OutcomeKind.RETRY, "a", "b")
    kept.expire(AT + 1, at=AT + 8 * DAY_MS)
    kept.settle(OutcomeKind.DELIVERED, "a", "b", at=AT + 9 * DAY_MS, generation=1)
    kept.expire(AT + 8 * DAY_MS, at=AT + 15 * DAY_MS)
    assert (kept.ids(), kept.attempts("a")) == ({"a", "b"}, 2)
    kept.expire(AT + 10 * DAY_MS, at=AT + 17 * DAY_MS)
    assert kept.ids() == set()
    assert content(kept.partition.tables)["attempts"] == {}
    assert not history.due(kept.partition.tables.database, AT + 99 * DAY_MS)
    assert [key for key, _ in kept.compacted() if key[:1] in b"ia"] == []
    kept.same_as_restored(tmp_path / "restored")


def test_a_record_that_is_folded_twice_or_before_a_crash_does_it_once(kept: Kept, tmp_path: Path) -> None:
    """What was folded and not sent is sent by the process after: the changelog and the store agree."""
    kept.add(Topic.HOOKS, hooks("a", "b"))
    kept.settle(OutcomeKind.DELIVERED, "a")
    record = records.encode(HistoryExpiry(AT + 1))
    kept.add(Topic.OUTCOMES, record, AT + DAY_MS)
    kept.partition.reopen()
    unsent = [entry for _, entries in kept.partition.fold.unsent() for entry in entries]
    assert [FIRST, *unsent] == kept.changelog
    offset = kept.partition.offsets[Topic.OUTCOMES] - 1
    assert kept.partition.fold.fold(Topic.OUTCOMES, offset, AT + DAY_MS, record).skipped
    assert kept.ids() == {"b"}
    kept.same_as_restored(tmp_path / "restored")


def test_a_kept_disk_that_missed_it_lets_go_of_it_too(kept: Kept, tmp_path: Path) -> None:
    kept.add(Topic.HOOKS, hooks("a", "b"))
    kept.settle(OutcomeKind.DELIVERED, "a")
    behind = len(kept.changelog)
    kept.expire(AT + 1)
    for size in (1, len(kept.changelog)):
        folder = tmp_path / f"other-{size}"
        restored(folder, kept.changelog[:behind], behind).close()
        restore = Restore(folder, Tables, AT)
        assert restore.start == behind
        for place in range(behind, len(kept.changelog), size):
            part = kept.changelog[place : place + size]
            assert restore.take(part, place + len(part))
        tables = restore.finish("next")
        found, wanted = content(tables), content(kept.partition.tables)
        assert [found[family] for family in FAMILIES] == [wanted[family] for family in FAMILIES]
        tables.close()


def test_an_id_that_was_written_twice_is_the_later_packs(kept: Kept, tmp_path: Path) -> None:
    """A producer that repeats itself: the same commit at two offsets."""
    kept.add(Topic.HOOKS, hooks("a"))
    kept.settle(OutcomeKind.DELIVERED, "a")
    kept.add(Topic.HOOKS, hooks("a"), AT + DAY_MS)
    kept.settle(OutcomeKind.DELIVERED, "a", at=AT + DAY_MS)
    kept.expire(AT + 1)
    assert kept.ids() == {"a"}
    kept.same_as_restored(tmp_path / "restored")


def test_one_record_takes_a_bounded_part(kept: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "MARKS", 4)
    for number in range(5):
        names = [f"{number}-{index}" for index in range(3)]
        kept.add(Topic.HOOKS, hooks(*names))
        kept.settle(OutcomeKind.DELIVERED, *names)
    gone = []
    while history.due(kept.partition.tables.database, AT + 1):
        kept.expire(AT + 1)
        gone.append(kept.partition.fold.figures.gone["ids"])
    assert gone == [6, 12, 15]


def test_what_goes_does_not_hang_on_the_order_of_topics(tmp_path: Path) -> None:
    """Turns do: they count records as they were read."""
    ends = []
    for hooks_first in (True, False):
        kept = Kept(tmp_path / str(hooks_first))
        kept.add(Topic.HOOKS, hooks("a", "b"))
        if hooks_first:
            kept.add(Topic.HOOKS, hooks("c"))
        kept.settle(OutcomeKind.DELIVERED, "a")
        if not hooks_first:
            kept.add(Topic.HOOKS, hooks("c"))
        kept.settle(OutcomeKind.DELIVERED, "c")
        kept.expire(AT + 1)
        found = content(kept.partition.tables)
        ends.append([found[family] for family in FAMILIES])
        kept.partition.tables.close()
    assert ends[0] == ends[1]


@pytest.mark.parametrize("character", ["x", "é", "字"])
def test_what_is_kept_fits_into_the_changelog(tmp_path: Path, character: str) -> None:
    """Attempts of rows that died long ago, each with the longest reason, where bodies are small and entries too."""
    limits = msgspec.structs.replace(configuration("127.0.0.1:9"), http=Http(max_body_bytes=256 << 10))
    partition = Partition(tmp_path / "7")
    partition.fold = PartitionFold(PARTITION, partition.tables, hook_record_bytes(limits) - ENTRY_OVERHEAD_BYTES)
    names = [f"hook-{number}" for number in range(250)]
    partition.add(Topic.HOOKS, hooks(*names))
    for generation in range(9):
        kind = OutcomeKind.DEAD if generation == 8 else OutcomeKind.RETRY
        outcomes = [
            Outcome(partition.seq(name), 0, generation, kind, AT, AT, generation + 1, AT, error=character * 500)
            for name in names
        ]
        partition.add(Topic.OUTCOMES, records.encode(OutcomeBatch(tuple(outcomes))))
    for _ in range(20):
        partition.add(Topic.OUTCOMES, records.encode(HistoryExpiry(AT + 1)), AT + 1)
    assert partition.fold.set_asides.count == 0
    assert not history.due(partition.tables.database, AT + 1)
    assert len(content(partition.tables)["attempts"]) == 250 * 9
    partition.tables.close()
