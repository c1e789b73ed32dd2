"""The ends of topics, and what is deleted below them: the broker's side of `trimming.py`.

Owns an admin client, made at the first call, and the questions it is asked: where partitions begin, what of them the
group has committed, what is older than a time. It blocks: for a thread, and one at a time. Decides nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from confluent_kafka import ConsumerGroupTopicPartitions, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec  # type: ignore[attr-defined]

from ankusa.store.errors import StoreError
from schemas.config import Config
from streams.kafka.clients import client_log, client_settings

REQUEST_S = 10.0
"""For one request. Whoever asks comes again in a minute."""

NONE = -1
"""The offset of no record: there is none as young as was asked for."""

Place = tuple[str, int]
"""A topic and a partition."""


class Span(NamedTuple):
    """The records of a partition that may go: from `start`, its first, up to and without `end`."""

    start: int
    end: int


class TopicTrim:
    """The topics that the group of workers reads."""

    def __init__(self, config: Config, request_s: float = REQUEST_S) -> None:
        self._request_s = request_s
        self._settings: dict[str, Any] = dict(client_settings(config.kafka, "trim"))
        self._group = f"{config.kafka.prefix}workers"
        self._client: AdminClient | None = None

    def _admin(self) -> AdminClient:
        if self._client is None:
            self._client = AdminClient(self._settings, logger=client_log)
        return self._client

    def spans(self, places: Iterable[Place], before_at: int) -> dict[Place, Span]:
        """By place, the records that the group has committed and that were written before `before_at` (unix ms). Raises
        StoreError."""
        wanted = [TopicPartition(*place) for place in places]
        try:
            starts = self._offsets(wanted, OffsetSpec.earliest())  # type: ignore[no-untyped-call]
            younger = self._offsets(wanted, OffsetSpec.for_timestamp(max(0, before_at)))
            committed = self._committed(wanted)
        except KafkaException as error:
            raise StoreError(f"the ends of topics cannot be read: {error.args[0]}") from error
        spans: dict[Place, Span] = {}
        for place, start in starts.items():
            ends = [offset for offset in (younger[place],) if offset != NONE]  # with none as young all is older
            spans[place] = Span(start, max(start, min([committed[place], *ends])))
        return spans

    def _offsets(self, wanted: list[TopicPartition], spec: OffsetSpec) -> dict[Place, int]:
        futures = self._admin().list_offsets(dict.fromkeys(wanted, spec), request_timeout=self._request_s)
        found = {(place.topic, place.partition): future.result().offset for place, future in futures.items()}
        for (topic, number), offset in found.items():
            if offset < NONE:  # one whose leader has just gone: by no means that nothing is there
                raise StoreError(f"{topic}[{number}]: its ends are not known now")
        return found

    def _committed(self, wanted: list[TopicPartition]) -> dict[Place, int]:
        """0 where the group has committed nothing."""
        asked = [ConsumerGroupTopicPartitions(self._group, wanted)]
        (future,) = self._admin().list_consumer_group_offsets(asked, request_timeout=self._request_s).values()
        found: dict[Place, int] = {(place.topic, place.partition): 0 for place in wanted}
        for place in future.result().topic_partitions:
            if place.error is None:
                found[place.topic, place.partition] = max(0, place.offset)
        return found

    def delete_below(self, floors: Mapping[Place, int]) -> dict[Place, int]:
        """Delete what is below the floors; where each partition begins now. Raises StoreError when one refuses; the
        others are done."""
        places = [TopicPartition(topic, number, floor) for (topic, number), floor in floors.items()]
        begins: dict[Place, int] = {}
        refused: str | None = None
        futures = self._admin().delete_records(
            places, request_timeout=self._request_s, operation_timeout=self._request_s
        )
        for place, future in futures.items():
            try:
                begins[place.topic, place.partition] = future.result().low_watermark
            except KafkaException as error:
                refused = f"{place.topic}[{place.partition}] below {floors[place.topic, place.partition]}: " + str(
                    error.args[0]
                )
        if refused is not None:
            raise StoreError(f"records cannot be deleted: {refused}; the worker's user needs Delete on the topic")
        return begins
