"""A partition's store beside its changelog: read on, thrown away, or refused."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from ankusa.store import keys
from ankusa.store.errors import StoreError
from ankusa.store.tables import Tables
from schemas import records
from schemas.records import Outcome, OutcomeBatch, OutcomeKind, Topic
from streams.kafka.changelog import Entry
from streams.kafka.folding import PartitionFold
from streams.kafka.marker import Marker
from streams.kafka.restoring import (
    STALE_MS,
    CutChangelogError,
    Restore,
    UnreadableChangelogError,
    owner_entry,
    read_state,
)
from streams.kafka.restoring import Changelog as Brokers
from streams.kafka.topic_ids import ids_entry
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

    def restored(
        self, entries: Sequence[Entry] | None = None, at: int = AT, begins: int = 0
    ) -> tuple[PartitionFold, Restore]:
        """The store after a restore from what the changelog has, or from `entries`."""
        given = self.entries if entries is None else entries
        restore = Restore(self.path, Tables, at, Brokers("log[7]", begins))
        try:
            while (start := restore.start) < len(given):
                restore.take(given[start:], len(given))
        except BaseException:
            restore.tables.close()
            raise
        return PartitionFold(PARTITION, restore.finish("next")), restore

    def rows(self) -> int:
        """In the store."""
        tables = Tables(self.path)
        found = tables.counts.total()[0]
        tables.close()
        return found


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


def test_an_empty_disk_is_not_restored_of_a_changelog_that_was_cut(tmp_path: Path) -> None:
    with pytest.raises(CutChangelogError, match=r"begins at offset 1, and .*/7, which is empty, has to read it from 0"):
        Restore(tmp_path / "7", Tables, AT, Brokers("log[7]", 1))
    Tables(tmp_path / "7").close()  # nobody has it open


def test_a_store_that_has_what_was_cut_is_read_on(tmp_path: Path) -> None:
    changelog = Changelog(tmp_path / "7", sent=3, folded=5)
    fold, _ = changelog.restored(begins=len(changelog.entries))
    assert fold.tables.counts.total() == (5, 0, 0)
    fold.tables.close()


def test_a_store_that_lacks_what_was_cut_is_refused_and_kept(tmp_path: Path) -> None:
    changelog = Changelog(tmp_path / "7", sent=3, folded=5)
    read = len(changelog.entries)
    with pytest.raises(CutChangelogError, match=f"begins at offset {read + 1}, and .* from {read} on"):
        changelog.restored(begins=read + 1)
    assert changelog.rows() == 5


def test_no_store_is_emptied_for_a_changelog_that_was_cut(tmp_path: Path) -> None:
    """One that was away, one that went its own way, and one that has more than the changelog."""
    changelog = Changelog(tmp_path / "7", sent=3, folded=5)
    with pytest.raises(CutChangelogError, match="was away for 12 days"):
        changelog.restored(at=AT + 2 * STALE_MS + 1, begins=1)
    with pytest.raises(CutChangelogError, match="has parted from it"):
        changelog.restored([*changelog.entries, owner_entry(2, "second")], begins=1)
    restore = Restore(tmp_path / "7", Tables, AT, Brokers("log[7]", 1))
    with pytest.raises(CutChangelogError, match="has more than it"):
        restore.out_of_range(1)
    restore.tables.close()
    assert changelog.rows() == 5


def test_a_damaged_store_is_kept_where_the_changelog_was_cut(tmp_path: Path) -> None:
    changelog = Changelog(tmp_path / "7", sent=5, folded=5)
    for manifest in (tmp_path / "7").glob("MANIFEST-*"):
        manifest.write_bytes(b"x" * 1000)
    with pytest.raises(CutChangelogError, match="is damaged"):
        changelog.restored(begins=1)
    assert list((tmp_path / "7").glob("MANIFEST-*"))


def test_what_is_cut_while_it_is_read_is_refused(tmp_path: Path) -> None:
    changelog = Changelog(tmp_path / "7", sent=3, folded=3)
    restore = Restore(tmp_path / "new", Tables, AT, Brokers("log[7]"))
    assert restore.take(changelog.entries[:2], 2)
    with pytest.raises(CutChangelogError, match="begins at offset 3"):
        restore.out_of_range(3)
    restore.tables.close()


@pytest.mark.parametrize("lost", [1, 3])
def test_a_changelog_without_its_first_entries_is_refused(tmp_path: Path, lost: int) -> None:
    """Wherever it begins: it was made again while an owner wrote on."""
    changelog = Changelog(tmp_path / "7", sent=3, folded=3)
    restore = Restore(tmp_path / "new", Tables, AT, Brokers("log[7]"))
    with pytest.raises(CutChangelogError, match=r"log\[7\] does not begin with its first owner"):
        restore.take(changelog.entries[lost:], 9)
    restore.tables.close()
    restore = Restore(tmp_path / "new", Tables, AT, Brokers("log[7]"))
    with pytest.raises(CutChangelogError):  # nothing of it was taken
        restore.take([owner_entry(3, "second"), *changelog.entries[lost:]], 9)
    restore.tables.close()


def test_a_changelog_that_lost_its_end_is_restored_as_far_as_it_goes(tmp_path: Path) -> None:
    """What is missing of it was made of records that are folded again."""
    changelog = Changelog(tmp_path / "7", sent=5, folded=5)
    restore = Restore(tmp_path / "7", Tables, AT, Brokers("log[7]"))
    restore.out_of_range(0)
    assert restore.start == 0
    assert restore.take(changelog.entries[:-1], len(changelog.entries) - 1)
    tables = restore.finish("next")
    assert read_state(tables).turn < 5
    tables.close()


def test_a_store_of_another_changelog_is_refused_and_kept(tmp_path: Path) -> None:
    changelog = Changelog(tmp_path / "7", sent=3, folded=5)
    Restore(tmp_path / "7", Tables, AT, Brokers("log[7]", 0, "c1")).finish("next").close()
    Restore(tmp_path / "7", Tables, AT, Brokers("log[7]", 0, "c1")).tables.close()
    Restore(tmp_path / "7", Tables, AT, Brokers("log[7]")).finish("next").close()  # whose broker gives no ids
    with pytest.raises(StoreError, match=r"log\[7\] was made again: its id is c2, and .*/7 is a store of c1"):
        Restore(tmp_path / "7", Tables, AT, Brokers("log[7]", 0, "c2"))
    assert changelog.rows() == 5


def test_a_store_is_of_the_changelog_that_it_is_restored_from_whatever_its_entries_say(tmp_path: Path) -> None:
    """One that was copied from another cluster tells of that one's ids; a restore of it may be given up halfway."""
    entries = [owner_entry(0, "first"), ids_entry({"changelog": "theirs"})]
    ours = Brokers("log[7]", 0, "ours")
    restore = Restore(tmp_path / "7", Tables, AT, ours)
    assert restore.take(entries, 2)
    restore.tables.close()
    restore = Restore(tmp_path / "7", Tables, AT, ours)
    assert restore.start == 2
    restore.tables.close()
    with pytest.raises(StoreError, match="is a store of ours"):
        Restore(tmp_path / "7", Tables, AT, Brokers("log[7]", 0, "theirs"))


def test_a_held_hook_is_counted_once_however_often_it_is_read(tmp_path: Path) -> None:
    partition = Partition(tmp_path / "7")
    entries = [owner_entry(0, "first"), *partition.add(Topic.QUARANTINE, holds("a", "b")[0]).entries]
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
    assert restore.take([owner_entry(0, "first")], 1)
    for key in (b"?what", b"r", b"p", b"dkey", b"l\xff", b"o", b"i"):
        assert restore.take([(key, None)], 1)
    tables = restore.finish("next")
    assert tables.counts.total() == (0, 0, 0)
    tables.close()
