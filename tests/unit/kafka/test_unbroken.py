"""Which record of a partition may be taken next."""

from __future__ import annotations

import pytest

from schemas.records import Topic
from streams.kafka.topics import TopicNames
from streams.kafka.unbroken import AGAIN_S, COMPACTED, WHOLE, Asks, Unbroken


class World:
    def __init__(self) -> None:
        self.now_s = 0.0
        self.unbroken = Unbroken(lambda topic: 9 if topic is Topic.HOOKS else -1, lambda: self.now_s)


@pytest.fixture
def world() -> World:
    return World()


def test_it_goes_on_from_what_was_folded(world: World) -> None:
    unbroken = world.unbroken
    assert unbroken.missing(Topic.HOOKS, 10) is None
    assert unbroken.missing(Topic.HOOKS, 11) == 10
    assert unbroken.missing(Topic.HOOKS, 3) is None  # a repeat, which the fold skips
    assert unbroken.missing(Topic.OUTCOMES, 0) is None
    assert unbroken.missing(Topic.OUTCOMES, 1) == 0


def test_a_record_that_was_taken_is_followed_by_the_next(world: World) -> None:
    """Although it is not folded yet, as an outcome that waits for its hook."""
    unbroken = world.unbroken
    unbroken.taken(Topic.OUTCOMES, 0)
    unbroken.taken(Topic.OUTCOMES, 1)
    assert unbroken.missing(Topic.OUTCOMES, 2) is None
    assert unbroken.missing(Topic.OUTCOMES, 3) == 2
    unbroken.taken(Topic.OUTCOMES, 0)  # read once more
    assert unbroken.missing(Topic.OUTCOMES, 3) == 2
    assert unbroken.missing(Topic.HOOKS, 11) == 10


def test_what_may_be_in_a_hole_of_a_compacted_topic_is_asked_for_once(world: World) -> None:
    """By whoever reads it: a hole, and what was in it, are both behind the record that was taken."""
    unbroken = world.unbroken
    assert unbroken.missing(Topic.REPLAYS, 1000) == 0
    unbroken.taken(Topic.REPLAYS, 1000)
    assert unbroken.missing(Topic.REPLAYS, 1000) is None
    assert unbroken.missing(Topic.REPLAYS, 15) is None
    assert unbroken.missing(Topic.REPLAYS, 1001) is None
    assert unbroken.missing(Topic.REPLAYS, 1003) == 1001


def test_every_topic_that_is_folded_is_whole_or_compacted() -> None:
    assert set(TopicNames("").folded) == WHOLE | COMPACTED
    assert not WHOLE & COMPACTED


def test_what_is_on_its_way_asks_once(world: World) -> None:
    unbroken = world.unbroken
    assert unbroken.asks(Topic.HOOKS, 10, 15) is Asks.READ
    assert unbroken.asks(Topic.HOOKS, 10, 16) is Asks.NOTHING
    assert unbroken.asks(Topic.OUTCOMES, 10, 15) is Asks.READ
    world.now_s = AGAIN_S
    assert unbroken.asks(Topic.HOOKS, 10, 17) is Asks.READ  # the first came to nothing
    assert unbroken.asks(Topic.HOOKS, 12, 17) is Asks.READ


def test_where_a_record_comes_again_as_the_first_it_is_looked_for_what_is_missing(world: World) -> None:
    unbroken = world.unbroken
    assert unbroken.asks(Topic.HOOKS, 10, 11) is Asks.READ
    assert unbroken.asks(Topic.HOOKS, 10, 12) is Asks.NOTHING
    for _ in range(3):
        assert unbroken.asks(Topic.HOOKS, 10, 11) is Asks.LOOK
    assert unbroken.asks(Topic.HOOKS, 12, 12) is Asks.READ


def test_what_came_before_its_turn_waits_until_it_is_taken(world: World) -> None:
    unbroken = world.unbroken
    assert unbroken.waits_for(Topic.HOOKS) is None
    unbroken.missing(Topic.HOOKS, 13)
    unbroken.missing(Topic.HOOKS, 12)
    assert unbroken.waits_for(Topic.HOOKS) == range(10, 13)
    unbroken.taken(Topic.HOOKS, 12)
    assert unbroken.waits_for(Topic.HOOKS) == range(13, 13)
    unbroken.taken(Topic.HOOKS, 13)
    assert unbroken.waits_for(Topic.HOOKS) is None
