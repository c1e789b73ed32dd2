"""The ends of partitions that brokers cannot tell just now: nothing is deleted by a guess."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any

import pytest
from confluent_kafka import OFFSET_INVALID, KafkaError, KafkaException, TopicPartition
from msgspec import Struct

from streams.kafka.topic_trim import NONE, Place, Span, TopicTrim
from tests.kafka import cluster

HOOKS, OTHER = ("hooks", 0), ("hooks", 1)


class Told(Struct):
    offset: int


class Admin:
    """Brokers that answer with `ends`, of all places or by place: the earliest offset first, then the first that is
    young. None is an error."""

    def __init__(self, *ends: int | dict[Place, int | None]) -> None:
        self._ends = list(ends)

    def list_offsets(self, wanted: Any, **_: Any) -> dict[Any, Future[Told]]:
        told = self._ends.pop(0)
        ends = told if isinstance(told, dict) else {(place.topic, place.partition): told for place in wanted}
        return {place: _told(ends[place.topic, place.partition]) for place in wanted}


class Member:
    """The group has committed 40 of each."""

    def committed(self, wanted: list[TopicPartition], within_s: float) -> list[TopicPartition]:
        return [TopicPartition(place.topic, place.partition, 40) for place in wanted]


def _told(offset: int | None) -> Future[Told]:
    if offset is not None:
        return _done(Told(offset))
    future: Future[Told] = Future()
    future.set_exception(KafkaException(KafkaError(KafkaError.LEADER_NOT_AVAILABLE)))
    return future


def _done(value: Any) -> Future[Any]:
    future: Future[Any] = Future()
    future.set_result(value)
    return future


def spans(monkeypatch: pytest.MonkeyPatch, *ends: int | dict[Place, int | None]) -> Any:
    trim, admin = TopicTrim(cluster.configuration("127.0.0.1:1")), Admin(*ends)
    monkeypatch.setattr(trim, "_admin", lambda: admin)
    monkeypatch.setattr(trim, "_member", Member())
    return trim.spans([HOOKS, OTHER], 0)


def test_a_span_ends_where_the_young_or_the_uncommitted_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    for young, end in ((30, 30), (50, 40), (NONE, 40)):
        found, refused = spans(monkeypatch, 5, young)
        assert (found[HOOKS], refused) == (Span(5, end), None)


@pytest.mark.parametrize("unknown", [OFFSET_INVALID, None])
@pytest.mark.parametrize("first", [True, False])
def test_what_is_not_known_is_no_span_and_stops_no_other(
    monkeypatch: pytest.MonkeyPatch, unknown: int | None, first: bool
) -> None:
    """A leader that has gone is answered so without an error, or with one (`None`)."""
    ends: list[int | dict[Place, int | None]] = [5, 30]
    ends[0 if first else 1] = {HOOKS: unknown, OTHER: 5 if first else 30}
    found, refused = spans(monkeypatch, *ends)
    assert found == {OTHER: Span(5, 30)}
    assert str(refused).startswith("hooks[0]: its ends cannot be read: ")
