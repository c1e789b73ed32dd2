"""The pace of a job and the shares of a tick, by arithmetic alone."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ankusa.core import pace as paces
from ankusa.core.pace import (
    NODE_ENTRIES,
    NODE_ITEMS,
    PAGE_ENTRIES,
    PAGE_ITEMS,
    TICK_ENTRIES,
    TICK_ITEMS,
    TICK_MS,
    Grant,
    Pace,
    Round,
)


def run(rate: int, ticks: int, at: int = 0) -> list[int]:
    """Items of each of so many ticks, all used."""
    pace: Pace | None = None
    moved = []
    for tick in range(ticks):
        pace = paces.refill(pace, rate, at + tick * TICK_MS)
        moved.append(paces.items(pace))
        pace = paces.spend(pace, moved[-1])
    return moved


def test_one_a_second_is_one_item_a_second() -> None:
    assert run(1, 16) == [1, 0, 0, 0, 0] * 3 + [1]


@pytest.mark.parametrize("rate", [1, 2, 3, 4, 5, 6, 7, 11, 99, 1_000, 1_003, 10_000])
def test_a_rate_is_kept_exactly_over_a_minute(rate: int) -> None:
    moved = run(rate, 301)
    assert sum(moved[1:]) == pytest.approx(rate * 60, abs=1)


@given(st.integers(1, 100_000))
def test_no_tick_exceeds_its_tokens(rate: int) -> None:
    most = max(1, -(-rate * TICK_MS // 1000))
    assert all(count <= min(most, TICK_ITEMS) for count in run(rate, 20))


def test_the_fastest_rate_is_capped_at_the_items_of_a_tick() -> None:
    assert run(100_000, 3) == [TICK_ITEMS] * 3


@given(st.integers(1, 100_000), st.integers(0, 10**9))
def test_a_pause_makes_no_burst(rate: int, idle_ms: int) -> None:
    pace = paces.refill(Pace(0, 0), rate, idle_ms)
    assert paces.items(pace) <= max(1, -(-rate * TICK_MS // 1000))
    assert paces.items(paces.refill(pace, rate, idle_ms * 2)) <= max(1, -(-rate * TICK_MS // 1000))


def test_a_new_rate_holds_at_the_next_tick() -> None:
    pace = paces.refill(paces.refill(None, 100, 0), 5_000, TICK_MS)
    assert paces.items(pace) == 1_000
    assert paces.items(paces.refill(pace, 10, 2 * TICK_MS)) == 2


def test_a_clock_that_steps_back_gives_nothing() -> None:
    pace = paces.spend(paces.refill(None, 100, 10_000), 20)
    back = paces.refill(pace, 100, 4_000)
    assert paces.items(back) == 0
    assert paces.items(paces.refill(back, 100, 4_200)) == 20


def take(turns: Round, scanned: int | None = None) -> list[Grant]:
    """Every page of a tick, each used to the full (or with so many entries scanned and nothing found)."""
    grants = []
    while (grant := turns.next()) is not None:
        grants.append(grant)
        if scanned is None:
            turns.used(grant, grant.items, grant.items, more=True)
        else:
            turns.used(grant, 0, min(scanned, grant.entries), more=True)
    return grants


def items_of(grants: list[Grant]) -> dict[str, int]:
    found: dict[str, int] = {}
    for grant in grants:
        found[grant.job_id] = found.get(grant.job_id, 0) + grant.items
    return found


def test_jobs_take_turns_page_by_page() -> None:
    grants = take(Round([("a", 300), ("b", 300)]))
    assert [(grant.job_id, grant.items, grant.first) for grant in grants] == [
        ("a", 125, True),
        ("b", 125, True),
        ("a", 125, False),
        ("b", 125, False),
        ("a", 50, False),
        ("b", 50, False),
    ]


def test_a_slow_job_is_not_held_up_by_a_fast_one() -> None:
    assert items_of(take(Round([("fast", TICK_ITEMS), ("slow", 3)])))["slow"] == 3


def test_sixteen_jobs_share_the_items_of_a_tick() -> None:
    shares = items_of(take(Round([(str(number), TICK_ITEMS) for number in range(16)])))
    assert shares == {str(number): PAGE_ITEMS for number in range(16)}
    assert sum(shares.values()) == NODE_ITEMS


def test_sixteen_jobs_that_find_nothing_share_the_entries_of_a_tick() -> None:
    grants = take(Round([(str(number), TICK_ITEMS) for number in range(16)]), scanned=PAGE_ENTRIES)
    by_job = [sum(grant.job_id == str(number) for grant in grants) for number in range(16)]
    assert sum(grant.entries for grant in grants) == NODE_ENTRIES
    assert max(by_job) - min(by_job) <= 1


def test_one_job_scans_no_more_than_a_tick_allows() -> None:
    grants = take(Round([("a", TICK_ITEMS)]), scanned=PAGE_ENTRIES)
    assert sum(grant.entries for grant in grants) == TICK_ENTRIES


def test_a_job_without_tokens_or_with_nothing_left_gets_no_page() -> None:
    turns = Round([("a", 0), ("b", 10)])
    grant = turns.next()
    assert grant is not None and grant.job_id == "b"
    turns.used(grant, 1, 5, more=False)
    assert turns.next() is None


def test_every_job_is_first_in_its_turn() -> None:
    order = [paces.in_turn(["a", "b", "c"], tick) for tick in range(3)]
    assert [jobs[0] for jobs in order] == ["a", "b", "c"]
    assert order[1] == ["b", "c", "a"]
    assert paces.in_turn([], 7) == []
