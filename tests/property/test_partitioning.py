"""The partition rule: lanes and dedupe keys are in one partition, all else spreads, and nothing of it changes."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.config import OrderingKey, Sink, Source, Verify
from schemas.records import Envelope, Held
from streams.kafka.partitioning import Spread, lanes_agree, partition_of_key, routing_key

NAMES = st.text("ab-_09", min_size=1, max_size=8)
KEYS = st.text(max_size=20)
PARTITIONS = st.integers(1, 4096)


def hook(
    tenant: str = "t", source: str = "s", dedupe: str | None = None, ordering: tuple[str | None, ...] = ()
) -> Envelope:
    return Envelope("i", source, tenant, 1, ("log",), (), None, "i", dedupe, 1, False, ordering)


def source_of(*keys: OrderingKey | str | None) -> Source:
    """A source whose sinks are ordered by `keys`; a text is a sink that is not ordered."""
    sinks = tuple(
        Sink(type="log") if isinstance(key, str) else Sink(type="log", ordered=True, ordering_key=key) for key in keys
    )
    return Source(name="s", verify=Verify(type="none"), sinks=sinks)


CUSTOMER, ORDER = OrderingKey(json="customer"), OrderingKey(header="x-order")


@pytest.mark.parametrize(
    ("source", "agreed"),
    [
        (source_of("plain"), True),
        (source_of(CUSTOMER), True),
        (source_of(CUSTOMER, "plain", OrderingKey(json="customer")), True),
        (source_of(None, None), True),
        (source_of(CUSTOMER, ORDER), False),
        (source_of(CUSTOMER, None), False),
    ],
)
def test_agreement_is_of_the_configuration(source: Source, agreed: bool) -> None:
    assert lanes_agree(source) is agreed


@given(NAMES, NAMES, st.none() | KEYS, KEYS)
def test_ordered_sinks_that_agree_go_by_their_key(tenant: str, source: str, dedupe: str | None, key: str) -> None:
    for ordering in ((key,), (None, key), (key, None, key)):
        assert routing_key(hook(tenant, source, dedupe, ordering), agreed=True) == f"{tenant}/{source}/{key}"


@given(NAMES, NAMES, st.none() | KEYS, st.lists(KEYS, min_size=2, max_size=4))
def test_ordered_sinks_that_do_not_agree_go_by_the_source(
    tenant: str, source: str, dedupe: str | None, keys: list[str]
) -> None:
    """Also a hook whose keys are alike by chance: the next one's are not, and both may be of one lane."""
    for ordering in (tuple(keys), (keys[0],) * len(keys)):
        assert routing_key(hook(tenant, source, dedupe, ordering), agreed=False) == f"{tenant}/{source}"


@given(NAMES, NAMES, KEYS, st.booleans())
def test_without_order_a_dedupe_key_decides(tenant: str, source: str, key: str, agreed: bool) -> None:
    for ordering in ((), (None, None)):
        assert routing_key(hook(tenant, source, key, ordering), agreed=agreed) == f"{tenant}/{source}/{key}"


@given(NAMES, NAMES, st.booleans())
def test_all_else_may_go_anywhere(tenant: str, source: str, agreed: bool) -> None:
    assert routing_key(hook(tenant, source), agreed=agreed) is None


@given(NAMES, NAMES)
def test_a_held_hook_goes_by_its_source(tenant: str, source: str) -> None:
    assert routing_key(Held("i", source, tenant, 1, "POST", "/", (), "r", 0), agreed=True) == f"{tenant}/{source}"


@given(st.text(), PARTITIONS)
def test_a_key_has_one_partition(key: str, partitions: int) -> None:
    partition = partition_of_key(key, partitions)
    assert 0 <= partition < partitions
    assert partition_of_key(key, partitions) == partition


def test_a_key_keeps_the_partition_it_had_in_every_release() -> None:
    known = {"default/orders/cus_1": 7, "default/orders": 11, "acme/acme.orders/évt": 2}
    assert {key: partition_of_key(key, 12) for key in known} == known


@pytest.mark.parametrize("partitions", [2, 3, 12, 64])
def test_keys_spread_evenly(partitions: int) -> None:
    hooks = 1000 * partitions
    counts = Counter(partition_of_key(f"default/orders/evt_{number}", partitions) for number in range(hooks))
    # 1,000 each, give or take five standard deviations.
    assert len(counts) == partitions
    assert all(840 < count < 1160 for count in counts.values())


@given(PARTITIONS.filter(lambda n: n <= 64), st.integers(0, 10_000), st.data())
def test_the_spread_takes_turns_among_the_usable(partitions: int, first: int, data: st.DataObject) -> None:
    spread = Spread(partitions, first)
    usable = data.draw(st.sets(st.integers(0, partitions - 1)))
    turns = [spread.turn(usable) for _ in range(len(usable))]
    assert sorted(turn for turn in turns if turn is not None) == sorted(usable)
    assert spread.turn(()) is None


def test_the_spread_moves_on_from_where_it_was() -> None:
    spread = Spread(4, 6)
    assert [spread.turn(range(4)) for _ in range(5)] == [2, 3, 0, 1, 2]
    assert spread.turn({2}) == 2
    assert spread.turn(range(4)) == 3
