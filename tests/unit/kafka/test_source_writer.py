"""What a writer of sources makes of the brokers' answers to its commit."""

from __future__ import annotations

from typing import Any, cast

import pytest
from confluent_kafka import KafkaError, KafkaException

from ankusa.changing import ContendedError
from ankusa.store.errors import StoreError
from streams.kafka.source_writer import SourceWriter
from tests.kafka.cluster import configuration


class Answering:
    """A producer whose commit is answered with `code`."""

    def __init__(self, code: int) -> None:
        self._code = code

    def begin_transaction(self) -> None: ...
    def produce(self, *given: Any) -> None: ...

    def commit_transaction(self, timeout_s: float) -> None:
        raise KafkaException(KafkaError(self._code))


@pytest.mark.parametrize(
    ("code", "contended"),
    [
        (KafkaError._FENCED, True),
        (KafkaError.INVALID_PRODUCER_EPOCH, True),
        (KafkaError.UNKNOWN, True),
        (KafkaError._TIMED_OUT, False),
        (KafkaError.TOPIC_AUTHORIZATION_FAILED, False),
    ],
)
def test_a_writer_that_another_comes_after_is_told_so(code: int, contended: bool) -> None:
    writer = SourceWriter(configuration("127.0.0.1:9"))
    writer._producer = cast(Any, Answering(code))
    with pytest.raises(StoreError) as refused:
        writer.commit([("sources", b"acme.orders", b"{}")])
    assert isinstance(refused.value, ContendedError) is contended
