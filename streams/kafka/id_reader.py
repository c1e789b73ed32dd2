"""The ids of a fleet's topics and how many partitions they have, asked of the brokers.

Owns an admin client and that question. It blocks: for threads, any number at a time. Compares nothing.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Mapping
from typing import NamedTuple

from confluent_kafka import KafkaException, TopicCollection, Uuid
from confluent_kafka.admin import AdminClient

from ankusa.store.errors import StoreError
from schemas.config import Config
from streams.kafka.clients import Seldom, client_log, client_settings
from streams.kafka.topic_ids import CHANGELOG, TopicIds
from streams.kafka.topics import TopicNames

log = logging.getLogger("ankusa.kafka")

REQUEST_S = 4.0
AGAIN_S = 0.2

NO_ID = str(Uuid(0, 0))


class Look(NamedTuple):
    """The ids of the topics that the group is given, and by full name how many partitions each has."""

    ids: TopicIds
    partitions: Mapping[str, int]


class IdReader:
    """Of one fleet."""

    def __init__(self, config: Config) -> None:
        names = TopicNames(config.kafka.prefix)
        self._names = {names.changelog: CHANGELOG}
        self._names |= {name: topic.name.lower() for topic, name in names.folded.items()}
        self._asked = [names.changelog, *names.folded.values()]
        self._admin = AdminClient(dict(client_settings(config.kafka, "ids")), logger=client_log)

    def look(self) -> Look:
        """Raises StoreError where a topic is not there, or no broker answers."""
        try:
            futures = self._admin.describe_topics(TopicCollection(self._asked), request_timeout=REQUEST_S)
            found = {name: future.result() for name, future in futures.items()}
        except KafkaException as error:
            raise StoreError(f"the ids of topics cannot be read: {error.args[0]}") from error
        ids = {known: str(found[name].topic_id) for name, known in self._names.items()}
        return Look(
            {known: topic_id for known, topic_id in ids.items() if topic_id != NO_ID},
            {name: len(topic.partitions) for name, topic in found.items()},
        )

    def read(self) -> TopicIds:
        """The ids alone. Raises StoreError as `look`."""
        return self.look().ids

    def wait(self, cancelled: Callable[[], bool]) -> TopicIds | None:
        """The same, as soon as it can be had; None when it is `cancelled`."""
        told = Seldom()
        while not cancelled():
            self._learn_brokers()
            try:
                return self.read()
            except StoreError as error:
                if told.due():
                    log.warning("event=topic_ids_wait reason=%s", error)
                time.sleep(AGAIN_S)
        return None

    def _learn_brokers(self) -> None:
        """Have the client ask any broker who leads them now: it puts its questions to the controller that it knows of,
        for minutes after that has gone."""
        with contextlib.suppress(KafkaException):
            self._admin.list_topics(self._asked[0], REQUEST_S)
