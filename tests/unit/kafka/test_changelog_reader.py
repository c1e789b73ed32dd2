"""A restore that waits for a changelog nobody leads: it asks often, and says so seldom."""

from __future__ import annotations

import itertools
import logging
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from streams.kafka import changelog_reader, clients
from streams.kafka.changelog_reader import ChangelogReader, RestoreCancelledError
from tests.kafka import cluster

TRIES = 30


class Leaderless:
    """A consumer whose every question is refused at once."""

    asked = 0

    def get_watermark_offsets(self, *_: Any, **__: Any) -> None:
        self.asked += 1
        raise KafkaException(KafkaError(KafkaError.LEADER_NOT_AVAILABLE))

    def close(self) -> None:
        pass


@pytest.mark.parametrize(("every_s", "lines"), [(clients.WAITS_S, 1), (0.0, TRIES)])
def test_one_line_in_ten_seconds(
    every_s: float, lines: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(clients, "WAITS_S", every_s)
    monkeypatch.setattr(changelog_reader, "AGAIN_S", 0.0)
    looks = itertools.count()
    reader = ChangelogReader(cluster.configuration("127.0.0.1:1"), 3, lambda: next(looks) >= TRIES)
    reader.close()
    consumer = Leaderless()
    monkeypatch.setattr(reader, "_consumer", consumer)
    with caplog.at_level(logging.WARNING, "ankusa.kafka"), pytest.raises(RestoreCancelledError):
        reader.begins()
    assert consumer.asked == TRIES
    said = [record.getMessage() for record in caplog.records if "event=restore_waits" in record.getMessage()]
    assert len(said) == lines
    assert said[0].startswith("event=restore_waits partition=3 reason=")
