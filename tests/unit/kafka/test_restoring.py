"""A partition's store beside its changelog: read on, thrown away, or refused."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from ankusa.store import keys
from ankusa.store.tables import Tables
from schemas import records
from schemas.records import Outcome, OutcomeBatch, OutcomeKind, Topic
from streams.kafka.changelog import Entry
from streams.kafka.folding import PartitionFold
from streams.kafka.marker import Marker
from streams.kafka.restoring import STALE_MS, Restore, UnreadableChangelogError, owner_entry, read_state
from tests.unit.kafka.records import PARTITION, Partition, holds, hooks
from tests.unit.store.entries import AT


class Changelog:
    """What one owner has sent of `partition`, and the store it was sent from, closed."""

    def __init__(self, path: Path, *, sent: int, folded: int) -> None:
        self.path = path
        restore = Restore(path, Tables, AT)
        restore.finish("first").close()
        partition = Partition(path)
        self.entries: list[Entry] = [owner_entry(0, "first")]
        for number in range(folded):
            entries = partition.add(Topic.HOOKS, hooks(f"hook-{number}")).entries
            if number < sent:
                self.entries += entries
        partition.fold.sent(1, sent, len(self.entries), AT)
        partition.tables.close()

    def restored(self, entries: Sequence[Entry] | None = None, at: int = AT) -> tuple[PartitionFold, Restore]:
        """The store after a restore from what the changelog has, or from `entries`."""
        given = self.entries if entries is None else entries
        restore = Restore(self.path, Tables, at)
        while (start := restore.start) < len(given):
            restore.take(given[start:], len(given))
        return PartitionFold(PARTITION, restore.finish("next")), restore


def test_a_store_that_was_kept_reads_nothing_again_and_keeps_what_it_has_to_send(tmp_path: Path) -> None:
    fold, restore = Changelog(tmp_path / "7", sent=3, folded=5).restored()
    assert restore.applied == 0
    assert [turn for turn, _ in fold.unsent()] == [4, 5]
    assert fold.tables.counts.total() == (5, 0, 0)
    assert read_state(fold.tables).turn == 3
    fold.tables.close()


def test_a_report_that_never_came_is_no_reason_to_send_again(tmp_path: Path) -> None:
    changelog = Changelog(tmp_path / "7", sent=3, folded=5)
    partition = Partition(tmp_path / "7")
    more = [entry for turn, entries in partition.fold.unsent() for entry in entries if turn == 4]
    partition.tables.close()
    fold, _ = changelog.restored([*changelog.entries, *more])
    assert [turn for turn, _ in fold.unsent()] == [5]
    assert fold.tables.counts.total() == (5, 0, 0)
    fold.tables.close()


def test_what_a_store_has_gone_beyond_is_not_put_back(tmp_path: Path) -> None:
    """The changelog got a hook of a store that has delivered it since, and nobody heard of it."""
    restore = Restore(tmp_path / "7", Tables, AT)
    restore.finish("first").close()
    partition = Partition(tmp_path / "7")
    stored = partition.add(Topic.HOOKS, hooks("a")).entries
    done = Outcome(partition.seq("a"), 0, 0, OutcomeKind.DELIVERED, AT, AT, 1)
    partition.add(Topic.OUTCOMES, records.encode(OutcomeBatch((done,))))
    partition.tables.close()
    restore = Restore(tmp_path / "7", Tables, AT)
    assert restore.take([owner_entry(0, "first"), *stored], 1 + len(stored))
    fold = PartitionFold(PARTITION, restore.finish("next"))
    assert fold.tables.counts.total() == (0, 0, 0)
    assert [turn for turn, _ in fold.unsent()] == [2]
    fold.tables.close()


def test_a_store_that_went_its_own_way_is_emptied(tmp_path: Path) -> None:
    """Another owner went on from what was sent, and folded other records than this one had."""
    changelog = Changelog(tmp_path / "7", sent=3, folded=5)
    other = Changelog(tmp_path / "other", sent=4, folded=4)
    history = [*changelog.entries, owner_entry(3, "second"), *other.entries[-3:]]
    fold, restore = changelog.restored(history)
    assert fold.tables.counts.total() == (4, 0, 0)
    assert fold.turn == 4
    assert list(fold.unsent()) == []
    assert restore.applied > len(changelog.entries)
    fold.tables.close()


def test_an_owner_who_went_on_from_all_there_is_is_followed(tmp_path: Path) -> None:
    changelog = Changelog(tmp_path / "7", sent=3, folded=3)
    other = Changelog(tmp_path / "other", sent=4, folded=4)
    fold, restore = changelog.restored([*changelog.entries, owner_entry(3, "second"), *other.entries[-3:]])
    assert fold.tables.counts.total() == (4, 0, 0)
    assert restore.applied == 4
    fold.tables.close()


def test_a_store_that_was_away_for_too_long_is_emptied(tmp_path: Path) -> None:
    changelog = Changelog(tmp_path / "7", sent=5, folded=5)
    fold, restore = changelog.restored(at=AT + STALE_MS)
    assert restore.applied == 0
    fold.tables.close()
    fold, restore = changelog.restored(at=AT + 2 * STALE_MS + 1)
    assert restore.applied > 0
    assert fold.tables.counts.total() == (5, 0, 0)
    fold.tables.close()


def test_a_damaged_store_is_emptied(tmp_path: Path) -> None:
    changelog = Changelog(tmp_path / "7", sent=5, folded=5)
    for manifest in (tmp_path / "7").glob("MANIFEST-*"):
        manifest.write_bytes(b"x" * 1000)
    fold, restore = changelog.restored()
    assert restore.applied > 0
    assert fold.tables.counts.total() == (5, 0, 0)
    fold.tables.close()


def test_a_held_hook_is_counted_once_however_often_it_is_read(tmp_path: Path) -> None:
    partition = Partition(tmp_path / "7")
    entries = list(partition.add(Topic.QUARANTINE, holds("a", "b")[0]).entries)
    wanted = partition.tables.pen_size()
    partition.tables.close()
    restore = Restore(tmp_path / "new", Tables, AT)
    for following in (1, 2):
        assert restore.take(entries, following)
    tables = restore.finish("next")
    assert tables.pen_size() == wanted
    tables.close()


@pytest.mark.parametrize(
    ("entry", "reason"),
    [
        ((b"r" + keys.row_key(1, 0), b"\xc1"), "an entry of rows cannot be decoded"),
        ((b"l" + b"lane", b"\xc1"), "an entry of lanes cannot be decoded"),
        ((b"i" + keys.u64(1), b"\xc1"), "an entry of ids cannot be decoded"),
        ((b"mmarker/\x01", b"\xc1"), "a marker of the changelog cannot be decoded"),
        ((b"mmarker/\xff", records.encode(Marker(1, AT, 1))), "an entry of meta cannot be decoded"),
        ((b"mmarker/", records.encode(Marker(1, AT, 1))), "an entry of meta cannot be decoded"),
        ((b"jj1", b"\xc1"), "an entry of jobs cannot be decoded"),
        ((b"ba/b/0/http", b""), "an entry of breakers cannot be decoded"),
        ((b"kpack", b"\xc1"), "an entry of packs cannot be decoded"),
        ((b"tacme", b"\x93"), "an entry of limits cannot be decoded"),
        ((b"dkey", b"\0"), "an entry of dedupe cannot be decoded"),
        ((b"p", b"\0"), "an entry of pen cannot be decoded"),
        ((b"r", b""), "an entry of rows cannot be decoded"),
        ((b"o", b""), "an owner's entry cannot be decoded"),
        ((b"o" + keys.u64(1) + b"\xff", b""), "an owner's entry cannot be decoded"),
        ((b"?" + b"what", b""), "a newer release wrote it"),
    ],
)
def test_an_entry_that_cannot_be_read_is_refused(tmp_path: Path, entry: Entry, reason: str) -> None:
    restore = Restore(tmp_path / "7", Tables, AT)
    with pytest.raises(UnreadableChangelogError, match=reason):
        restore.take([entry], 1)
    assert restore.start == 0
    restore.tables.close()


def test_what_was_taken_back_is_no_reason_to_refuse(tmp_path: Path) -> None:
    """The way out for an operator: a tombstone under the key of what cannot be read, once compaction has been."""
    restore = Restore(tmp_path / "7", Tables, AT)
    for key in (b"?what", b"r", b"p", b"dkey", b"l\xff", b"o", b"i"):
        assert restore.take([(key, None)], 1)
    tables = restore.finish("next")
    assert tables.counts.total() == (0, 0, 0)
    tables.close()
