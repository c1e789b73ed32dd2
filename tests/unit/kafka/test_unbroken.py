"""Which record of a partition may be taken next."""

from __future__ import annotations

import pytest

from schemas.records import Topic
from streams.kafka.topics import TopicNames
from streams.kafka.unbroken import AGAIN_S, COMPACTED, WHOLE, Unbroken


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
    assert unbroken.asks(Topic.HOOKS, 10)
    assert not unbroken.asks(Topic.HOOKS, 10)
    assert unbroken.asks(Topic.OUTCOMES, 10)
    world.now_s = AGAIN_S
    assert unbroken.asks(Topic.HOOKS, 10)  # the first came to nothing
    assert unbroken.asks(Topic.HOOKS, 12)
