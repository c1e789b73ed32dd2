"""The due index: what it costs, and the turns it gives. That it is right, tests/property/test_due.py shows."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ankusa.store import keys
from ankusa.store.database import Database
from ankusa.store.due import DueIndex

AT = 1_700_000_000_000


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    store = Database(tmp_path / "store", ("due",), blobs="", churning=("due",))
    yield store
    store.close()


def put(database: Database, index: DueIndex, tenant: str, due_at: int, seq: int) -> None:
    key = keys.due_key(keys.LIVE, tenant, due_at, seq, 0)
    batch = database.batch()
    batch.put(key, b"", database.handles["due"])
    database.write(batch)
    index.added(tenant, due_at, key)


def settle(database: Database, tenant: str, due_at: int, seq: int) -> None:
    batch = database.batch()
    batch.delete(keys.due_key(keys.LIVE, tenant, due_at, seq, 0), database.handles["due"])
    database.write(batch)


def wanted(_seq: int, _sink: int) -> bool:
    return True


def test_a_row_far_ahead_costs_no_memory_for_every_row_that_passes_it(database: Database) -> None:
    index = DueIndex(database, keys.LIVE)
    put(database, index, "a", AT + 3_600_000, 1)
    for seq in range(2, 500):
        put(database, index, "a", AT + seq, seq)
        assert index.turn(AT + seq)
        assert index.page("a", AT + seq, 10, wanted) == [(AT + seq, seq, 0)]
        settle(database, "a", AT + seq, seq)
        assert index.next_due_at() == AT + 3_600_000
        index.set_aside("a")
        index.take_back("a")
    assert len(index._waiting) <= 2


def test_turns_go_round_in_the_order_in_which_tenants_came_due(database: Database) -> None:
    index = DueIndex(database, keys.LIVE)
    for number, tenant in enumerate(("c", "a", "b")):
        put(database, index, tenant, AT + number, number)
    assert list(index.turn(AT + 1)) == ["c", "a"]
    assert list(index.turn(AT + 2)) == ["c", "a", "b"]


def test_the_two_classes_do_not_see_each_other(database: Database) -> None:
    live = DueIndex(database, keys.LIVE)
    put(database, live, "a", AT, 1)
    replayed = DueIndex(database, keys.REPLAYED)
    assert not replayed.turn(AT)
    assert replayed.next_due_at() is None
    assert replayed.oldest_due_at(AT) is None
    assert DueIndex(database, keys.LIVE).oldest_due_at(AT) == AT


def test_a_page_ends_at_the_first_row_that_is_not_due_and_knows_its_time(database: Database) -> None:
    index = DueIndex(database, keys.LIVE)
    for seq in range(5):
        put(database, index, "a", AT + 10 * seq, seq)
    assert list(index.turn(AT + 25)) == ["a"]
    assert [seq for _, seq, _ in index.page("a", AT + 25, 100, wanted)] == [0, 1, 2]
    assert not index.turn(AT + 25)
    assert index.next_due_at() == AT + 30


def test_many_tenants_are_found_at_start(database: Database) -> None:
    batch = database.batch()
    for number in range(300):
        batch.put(keys.due_key(keys.LIVE, f"tenant-{number}", AT + number, number, 0), b"", database.handles["due"])
    database.write(batch)
    index = DueIndex(database, keys.LIVE)
    assert len(index.turn(AT + 300)) == 300
    assert index.oldest_due_at(AT + 300) == AT
