"""Whether tables were folded from the topics that there are."""

from __future__ import annotations

from pathlib import Path

import pytest

from ankusa.store.errors import StoreError
from ankusa.store.tables import Tables
from streams.kafka.restoring import Restore, owner_entry
from streams.kafka.topic_ids import ids_entry, known_ids, made_again, put_ids, taken_over
from tests.unit.store.entries import AT

KNOWN = {"changelog": "c1", "hooks": "h1", "outcomes": "o1"}


def test_a_topic_with_another_id_was_made_again() -> None:
    assert made_again(KNOWN, KNOWN) is None
    wrong = made_again(KNOWN, KNOWN | {"hooks": "h2"})
    assert wrong is not None
    assert "hooks was made again: its id is h2, and the tables are of h1" in wrong
    assert "changelog was made again" in (made_again(KNOWN, KNOWN | {"changelog": "c2"}) or "")


def test_an_id_that_one_side_does_not_have_tells_nothing() -> None:
    assert made_again({}, KNOWN) is None
    assert made_again(KNOWN, {}) is None


def test_a_changelog_of_another_cluster_is_no_judge_of_ids() -> None:
    assert taken_over(KNOWN, {"changelog": "c2", "hooks": "h2", "outcomes": "o2"}) is None
    assert taken_over(KNOWN, KNOWN | {"outcomes": "o2"}) is not None


def test_any_disk_knows_them_by_the_changelog(tmp_path: Path) -> None:
    tables = Tables(tmp_path / "first")
    assert known_ids(tables) == {}
    put_ids(tables, KNOWN)
    assert known_ids(tables) == KNOWN
    tables.close()
    restore = Restore(tmp_path / "next", Tables, AT)
    assert restore.take([owner_entry(0, "first"), ids_entry(KNOWN)], 2)
    tables = restore.finish("next")
    assert known_ids(tables) == KNOWN
    tables.close()


def test_ids_that_cannot_be_read_are_refused(tmp_path: Path) -> None:
    restore = Restore(tmp_path / "7", Tables, AT)
    assert restore.take([owner_entry(0, "first"), (ids_entry(KNOWN)[0], b"\xc1")], 2)
    tables = restore.finish("next")
    with pytest.raises(StoreError, match="the ids of its topics cannot be decoded"):
        known_ids(tables)
    tables.close()
