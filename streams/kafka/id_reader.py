"""The ids of a fleet's topics, asked of the brokers.

Owns an admin client and that question. It blocks: for threads, any number at a time. Compares nothing.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from confluent_kafka import KafkaException, TopicCollection, Uuid
from confluent_kafka.admin import AdminClient

from ankusa.store.errors import StoreError
from schemas.config import Config
from streams.kafka.clients import client_log, client_settings
from streams.kafka.topic_ids import CHANGELOG, TopicIds
from streams.kafka.topics import TopicNames
from streams.kafka.unbroken import WHOLE

log = logging.getLogger("ankusa.kafka")

REQUEST_S = 4.0
AGAIN_S = 0.2
NO_ID = str(Uuid(0, 0))


class IdReader:
    """Of the changelog and of the topics in `WHOLE`."""

    def __init__(self, config: Config) -> None:
        names = TopicNames(config.kafka.prefix)
        self._names = {names.changelog: CHANGELOG}
        self._names |= {name: topic.name.lower() for topic, name in names.folded.items() if topic in WHOLE}
        self._admin = AdminClient(dict(client_settings(config.kafka, "ids")), logger=client_log)

    def read(self) -> TopicIds:
        """Raises StoreError where a topic is not there, or no broker answers."""
        asked = TopicCollection(list(self._names))
        try:
            futures = self._admin.describe_topics(asked, request_timeout=REQUEST_S)
            found = {self._names[name]: future.result().topic_id for name, future in futures.items()}
        except KafkaException as error:
            raise StoreError(f"the ids of topics cannot be read: {error.args[0]}") from error
        return {name: str(topic_id) for name, topic_id in found.items() if str(topic_id) != NO_ID}

    def wait(self, cancelled: Callable[[], bool]) -> TopicIds | None:
        """The same, as soon as it can be had; None when it is `cancelled`."""
        while not cancelled():
            try:
                return self.read()
            except StoreError as error:
                log.warning("event=topic_ids_wait reason=%s", error)
                time.sleep(AGAIN_S)
        return None
