"""The ends of partitions that brokers cannot tell just now: nothing is deleted by a guess."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any

import pytest
from confluent_kafka import OFFSET_INVALID
from msgspec import Struct

from ankusa.store.errors import StoreError
from streams.kafka.topic_trim import NONE, Span, TopicTrim
from tests.kafka import cluster

HOOKS = ("hooks", 0)


class Told(Struct):
    offset: int


class Committed(Struct):
    topic: str
    partition: int
    offset: int
    error: None = None


class Group(Struct):
    topic_partitions: list[Committed]


class Admin:
    """Brokers that answer with `ends`: the earliest offset first, then the first that is young."""

    def __init__(self, *ends: int) -> None:
        self._ends = list(ends)

    def list_offsets(self, wanted: Any, **_: Any) -> dict[Any, Future[Told]]:
        offset = self._ends.pop(0)
        return {place: _done(Told(offset)) for place in wanted}

    def list_consumer_group_offsets(self, asked: Any, **_: Any) -> dict[str, Future[Group]]:
        return {"workers": _done(Group([Committed(*HOOKS, 40)]))}


def _done(value: Any) -> Future[Any]:
    future: Future[Any] = Future()
    future.set_result(value)
    return future


def spans(monkeypatch: pytest.MonkeyPatch, *ends: int) -> Any:
    trim, admin = TopicTrim(cluster.configuration("127.0.0.1:1")), Admin(*ends)
    monkeypatch.setattr(trim, "_admin", lambda: admin)
    return trim.spans([HOOKS], 0)


def test_a_span_ends_where_the_young_or_the_uncommitted_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    assert spans(monkeypatch, 5, 30) == {HOOKS: Span(5, 30)}
    assert spans(monkeypatch, 5, 50) == {HOOKS: Span(5, 40)}
    assert spans(monkeypatch, 5, NONE) == {HOOKS: Span(5, 40)}


@pytest.mark.parametrize("ends", [(OFFSET_INVALID, 30), (5, OFFSET_INVALID)])
def test_what_is_not_known_is_no_span(monkeypatch: pytest.MonkeyPatch, ends: tuple[int, int]) -> None:
    """A leader that has gone is answered so, without an error."""
    with pytest.raises(StoreError, match=r"hooks\[0\]: its ends are not known now"):
        spans(monkeypatch, *ends)
