"""Whether tables were folded from the topics that there are."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest

from ankusa.store.errors import StoreError
from ankusa.store.tables import Tables
from streams.kafka.folding import PartitionFold
from streams.kafka.partition import Partition
from streams.kafka.restoring import Restore, owner_entry
from streams.kafka.topic_ids import ids_entry, known_ids, known_next, made_again, put_ids, taken_over
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


@pytest.mark.parametrize("found", [{}, {"changelog": "c1"}, {"outcomes": "o1"}], ids=["none", "the changelog's", "one"])
def test_ids_that_brokers_do_not_give_are_not_forgotten(found: dict[str, str]) -> None:
    assert taken_over(KNOWN, found) is None
    assert known_next(KNOWN, found) == KNOWN


def test_ids_of_another_cluster_are_forgotten() -> None:
    assert known_next(KNOWN, {"changelog": "c2", "outcomes": "o2"}) == {"changelog": "c2", "outcomes": "o2"}
    assert known_next({}, KNOWN) == KNOWN


def test_a_partition_opened_while_no_ids_are_given_is_compared_with_those_that_come_later(tmp_path: Path) -> None:
    fold = PartitionFold(0, Tables(tmp_path / "store"))
    put_ids(fold.tables, KNOWN)
    partition = Partition(0, fold, {}, cast(Any, Failed()), "owner")
    partition.know_topics()
    assert known_ids(fold.tables) == KNOWN
    assert made_again(partition.ids, KNOWN | {"hooks": "h2"}) is not None
    fold.tables.close()


class Failed:
    """A sender that takes nothing."""

    failed = "closed"


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
