"""The ends of topics, and what is deleted below them: the broker's side of `trimming.py`.

Owns an admin client and a consumer that joins no group, made at the first call, and the questions they are asked: where
partitions begin, what of them the group has committed, what is older than a time. It blocks: for a thread, and one at a
time. Decides nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from confluent_kafka import OFFSET_INVALID, Consumer, KafkaException, TopicPartition
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
        self._member: Consumer | None = None

    def _admin(self) -> AdminClient:
        if self._client is None:
            self._client = AdminClient(self._settings, logger=client_log)
        return self._client

    def spans(self, places: Iterable[Place], before_at: int) -> tuple[dict[Place, Span], StoreError | None]:
        """By place, the records that the group has committed and that were written before `before_at` (unix ms), and
        why one is missing, if one is. Raises StoreError where the group cannot be asked."""
        wanted = [TopicPartition(*place) for place in places]
        starts, refused = self._offsets(wanted, OffsetSpec.earliest())  # type: ignore[no-untyped-call]
        younger, refused_too = self._offsets(wanted, OffsetSpec.for_timestamp(max(0, before_at)))
        committed = self._committed(wanted)
        spans: dict[Place, Span] = {}
        for place in starts.keys() & younger.keys():
            ends = [offset for offset in (younger[place],) if offset != NONE]  # with none as young all is older
            spans[place] = Span(starts[place], max(starts[place], min([committed[place], *ends])))
        return spans, refused or refused_too

    def _offsets(self, wanted: list[TopicPartition], spec: OffsetSpec) -> tuple[dict[Place, int], StoreError | None]:
        """Those that brokers tell, and why one does not."""
        futures = self._admin().list_offsets(dict.fromkeys(wanted, spec), request_timeout=self._request_s)
        found: dict[Place, int] = {}
        refused: StoreError | None = None
        for place, future in futures.items():
            try:
                offset, reason = future.result().offset, "its leader has just gone"
            except KafkaException as error:
                offset, reason = OFFSET_INVALID, str(error.args[0])
            if offset >= NONE:  # one whose leader goes has none, without an error: by no means that nothing is there
                found[place.topic, place.partition] = offset
            else:
                refused = StoreError(f"{place.topic}[{place.partition}]: its ends cannot be read: {reason}")
        return found, refused

    def _committed(self, wanted: list[TopicPartition]) -> dict[Place, int]:
        """0 where the group has committed nothing. Raises StoreError.

        Asked of a consumer that never joins the group. The admin client's own question ends the process, by an
        assertion of librdkafka, where the broker it was put to comes back after it has timed out (librdkafka 4605).
        """
        try:
            if self._member is None:
                self._member = Consumer({**self._settings, "group.id": self._group}, logger=client_log)
            told = self._member.committed(wanted, self._request_s)
        except KafkaException as error:
            raise StoreError(f"the offsets of {self._group} cannot be read: {error.args[0]}") from error
        refused = next((place for place in told if place.error is not None), None)
        if refused is not None:
            raise StoreError(f"the offsets of {self._group} cannot be read: {refused.topic}: {refused.error}")
        return {(place.topic, place.partition): max(0, place.offset) for place in told}

    def delete_below(self, floors: Mapping[Place, int]) -> tuple[dict[Place, int], StoreError | None]:
        """Delete what is below the floors; where each partition begins now, and why one refused, if one did."""
        places = [TopicPartition(topic, number, floor) for (topic, number), floor in floors.items()]
        begins: dict[Place, int] = {}
        refused: StoreError | None = None
        futures = self._admin().delete_records(
            places, request_timeout=self._request_s, operation_timeout=self._request_s
        )
        for place, future in futures.items():
            name, floor = f"{place.topic}[{place.partition}]", floors[place.topic, place.partition]
            try:
                begins[place.topic, place.partition] = future.result().low_watermark
            except KafkaException as error:
                refused = StoreError(
                    f"records cannot be deleted: {name} below {floor}: {error.args[0]}; the worker's user needs Delete "
                    "on the topic"
                )
        return begins, refused
