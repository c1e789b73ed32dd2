"""A seq says where its hook is in the fleet, and sorts by commit within a partition."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ankusa.store import keys
from schemas import records
from streams.kafka import places

PARTITIONS = st.integers(0, places.MAX_PARTITIONS - 1)
OFFSETS = st.integers(0, (1 << places.OFFSET_BITS) - 1)
INDEXES = st.integers(0, (1 << records.INDEX_BITS) - 1)
PLACES = st.tuples(PARTITIONS, OFFSETS, INDEXES)


def seq(place: tuple[int, int, int]) -> int:
    partition, offset, index = place
    return records.seq_of(places.log_offset(partition, offset), index)


@given(PLACES)
def test_a_seq_gives_its_place_back(place: tuple[int, int, int]) -> None:
    assert (places.partition_of(seq(place)), places.offset_of(seq(place)), places.index_of(seq(place))) == place


@given(PLACES, PLACES)
def test_seqs_sort_as_their_places_do_as_numbers_and_as_keys(
    one: tuple[int, int, int], other: tuple[int, int, int]
) -> None:
    assert (seq(one) < seq(other)) == (one < other)
    assert (keys.u64(seq(one)) < keys.u64(seq(other))) == (one < other)


def test_a_plan_of_4096_partitions_is_what_fits() -> None:
    assert places.MAX_PARTITIONS == 4096
    assert places.first_seq(1) == 1 << 52


@pytest.mark.parametrize(
    ("partition", "offset"), [(-1, 0), (places.MAX_PARTITIONS, 0), (0, -1), (0, 1 << places.OFFSET_BITS)]
)
def test_what_does_not_fit_is_refused(partition: int, offset: int) -> None:
    with pytest.raises(ValueError, match="is not below"):
        places.log_offset(partition, offset)
