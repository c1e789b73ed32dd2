"""What brokers answer while they come and go is waited for; what they refuse is not."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from streams.kafka.topic_admin import ClusterError, TopicAdmin
from tests.kafka import cluster


class Answers:
    """An admin client whose every question is answered with `code`."""

    def __init__(self, code: int) -> None:
        self._code = code

    def describe_topics(self, topics: Any, **_: Any) -> dict[str, Future[Any]]:
        future: Future[Any] = Future()
        future.set_exception(KafkaException(KafkaError(self._code)))
        return {"hooks": future}

    def poll(self, seconds: float) -> int:
        return 0


@pytest.mark.parametrize(
    ("code", "refused"),
    [
        (KafkaError._DESTROY_BROKER, False),
        (KafkaError._TRANSPORT, False),
        (KafkaError.LEADER_NOT_AVAILABLE, False),
        (KafkaError.TOPIC_AUTHORIZATION_FAILED, True),
    ],
)
def test_only_what_is_refused_ends_a_node(monkeypatch: pytest.MonkeyPatch, code: int, refused: bool) -> None:
    admin = TopicAdmin(cluster.configuration("127.0.0.1:1"))
    monkeypatch.setattr(admin, "_admin", Answers(code))
    with pytest.raises(ClusterError) as raised:
        admin.check()
    assert raised.value.refused is refused
