"""What waits in a batcher: bounds, turns between tenants, and nothing lost or counted twice."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Struct

from ankusa.sinks.batch_queue import BatchQueue, QueueLimits


class Entry(Struct, eq=False):
    tenant: str
    size_bytes: int = 1


def queue(entries: int = 100, size_bytes: int = 1_000) -> BatchQueue[Entry]:
    return BatchQueue(QueueLimits(entries, size_bytes))


def filled(waiting: BatchQueue[Entry], *tenants: str, size_bytes: int = 1) -> list[Entry]:
    entries = [Entry(tenant, size_bytes) for tenant in tenants]
    assert [waiting.add(entry) for entry in entries] == [None] * len(entries)
    return entries


def test_tenants_take_turns_and_keep_their_order() -> None:
    waiting = queue()
    entries = filled(waiting, *"aaaaabbc")
    batches = [waiting.take(3, 1_000) for _ in range(3)]
    assert ["".join(entry.tenant for entry in batch) for batch in batches] == ["abc", "aba", "aa"]
    taken = [entry for batch in batches for entry in batch]
    assert [e for e in taken if e.tenant == "a"] == entries[:5]
    assert (len(waiting), waiting.size_bytes, waiting.take(3, 1_000)) == (0, 0, [])


def test_a_batch_ends_before_it_is_too_large_and_a_large_entry_goes_alone() -> None:
    waiting = queue()
    filled(waiting, "a", size_bytes=30)
    filled(waiting, "a", size_bytes=200)
    filled(waiting, "b", size_bytes=60)
    sizes = [[entry.size_bytes for entry in waiting.take(10, 100)] for _ in range(3)]
    assert sizes == [[30, 60], [200], []]


def test_one_tenant_holds_half_at_most() -> None:
    waiting = queue(entries=10)
    filled(waiting, *"aaaaa")
    assert waiting.add(more := Entry("a")) is more
    filled(waiting, *"bbbbb")
    heavy = queue(size_bytes=100)
    filled(heavy, "a", size_bytes=50)
    assert heavy.add(more := Entry("a")) is more
    filled(heavy, "b", size_bytes=50)


def test_a_full_queue_takes_a_newcomer_in_place_of_the_newest_of_whoever_holds_most() -> None:
    waiting = queue(entries=10)
    a = filled(waiting, *"aaaaa")
    filled(waiting, *"bbbb")
    filled(waiting, "c")
    assert waiting.add(Entry("c")) is a[4]
    assert waiting.add(Entry("d")) is a[3] or len(waiting) == 10
    assert len(waiting) == 10
    held = Counter(entry.tenant for entry in waiting.take(10, 100))
    assert held["c"] == 2 and held["d"] == 1 and held.total() == 10


def test_who_holds_as_much_as_anybody_displaces_nobody() -> None:
    waiting = queue(entries=4)
    filled(waiting, *"aabb")
    assert waiting.add(entry := Entry("b")) is entry
    filled_evenly = queue(entries=4)
    filled(filled_evenly, *"abcd")
    assert filled_evenly.add(entry := Entry("e")) is entry


def test_by_bytes_too() -> None:
    waiting = queue(size_bytes=100)
    (heavy,) = filled(waiting, "a", size_bytes=50)
    filled(waiting, "b", size_bytes=45)
    assert waiting.add(Entry("c", 10)) is heavy
    assert waiting.size_bytes == 55
    assert waiting.add(big := Entry("c", 49)) is big  # it would not fit in the place of the largest either


@pytest.mark.parametrize("place", range(3))
def test_an_entry_can_be_taken_out_of_any_place_once(place: int) -> None:
    waiting = queue()
    entries = filled(waiting, *"aba")
    assert waiting.discard(entries[place])
    assert not waiting.discard(entries[place])
    rest = [entry for number, entry in enumerate(entries) if number != place]
    assert sorted(map(id, waiting.take(10, 100))) == sorted(map(id, rest))
    assert not waiting.discard(entries[0])


STEPS = st.lists(
    st.tuples(st.sampled_from(["add", "add", "take", "discard"]), st.sampled_from("abcd"), st.integers(1, 30)),
    max_size=60,
)


@given(STEPS)
def test_nothing_is_lost_counted_twice_or_over_the_bounds(steps: list[tuple[str, str, int]]) -> None:
    waiting = queue(entries=8, size_bytes=80)
    inside: dict[int, Entry] = {}
    kept: list[Entry] = []  # so that no id is used again
    for step, tenant, size in steps:
        if step == "add":
            kept.append(entry := Entry(tenant, size))
            inside[id(entry)] = entry
            if (out := waiting.add(entry)) is not None:
                del inside[id(out)]
        elif step == "take":
            for entry in waiting.take(size % 5, 40):
                del inside[id(entry)]
        elif inside:
            entry = next(iter(inside.values()))
            assert waiting.discard(entry)
            del inside[id(entry)]
        assert len(waiting) == len(inside) <= 8
        assert waiting.size_bytes == sum(entry.size_bytes for entry in inside.values()) <= 80
        counts = Counter(entry.tenant for entry in inside.values())
        assert all(count <= 4 for count in counts.values())
    assert {id(entry) for entry in waiting.drain()} == set(inside)
    assert (len(waiting), waiting.size_bytes) == (0, 0)
