"""The fold of packs that no row needs any more: what goes, what stays, and that it counts once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ankusa.core.fold import fold_outcomes
from ankusa.core.ops import DropCheckIn, DropPack, Op
from ankusa.store.tables import Tables
from schemas.records import CheckIn, OutcomeRecord, PackExpiry, decode_outcome_record, encode
from tests.property.refold import content

AT = 1_700_000_000_000


@pytest.fixture
def tables(tmp_path: Path) -> Iterator[Tables]:
    tables = Tables(tmp_path / "store")
    yield tables
    tables.close()


def fold(tables: Tables, record: OutcomeRecord) -> list[Op]:
    ops = fold_outcomes(decode_outcome_record(encode(record)), 1, AT, tables)
    batch = tables.database.batch()
    tables.apply(batch, ops)
    tables.database.write(batch)
    return ops


def test_a_pack_goes_with_the_references_of_its_hooks(tables: Tables) -> None:
    fold(tables, CheckIn("acme", "P", AT, (7, 8)))
    fold(tables, CheckIn("acme", "Q", AT, (9,)))
    assert fold(tables, PackExpiry(("P",))) == [DropPack("P"), DropCheckIn(7), DropCheckIn(8)]
    assert (tables.pack("P"), tables.has_pack("P")) == (None, False)
    assert [tables.checked_in(seq) for seq in (7, 8, 9)] == [None, None, ("Q", 0)]
    assert tables.pack("Q") == CheckIn("acme", "Q", AT, (9,))


def test_a_hook_whose_reference_leads_to_another_pack_keeps_it(tables: Tables) -> None:
    fold(tables, CheckIn("acme", "P", AT, (7,)))
    fold(tables, CheckIn("acme", "Q", AT, (8, 7)))  # two attempts at once: the first reference stands
    fold(tables, PackExpiry(("Q",)))
    assert (tables.checked_in(7), tables.checked_in(8)) == (("P", 0), None)
    assert tables.has_pack("P")


def test_one_that_is_named_twice_or_not_known_counts_once(tables: Tables) -> None:
    fold(tables, CheckIn("acme", "P", AT, (7,)))
    assert fold(tables, PackExpiry(("P", "nobody's", "P"))) == [DropPack("P"), DropCheckIn(7)]
    after = content(tables)
    assert fold(tables, PackExpiry(("P",))) == []
    assert content(tables) == after


def test_a_check_in_that_comes_again_after_its_expiry_is_known_again(tables: Tables) -> None:
    """As of an owner of before whose record came late: the next pass finds it."""
    fold(tables, CheckIn("acme", "P", AT, (7,)))
    fold(tables, PackExpiry(("P",)))
    fold(tables, CheckIn("acme", "P", AT, (7,)))
    assert (tables.checked_in(7), tables.has_pack("P")) == (("P", 0), True)
