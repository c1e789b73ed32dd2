"""What a Kafka report means: the row of the outcome table for each code a broker or the library gives."""

import pytest
from confluent_kafka import KafkaError

from ankusa.sinks.connections import Destinations
from ankusa.sinks.contract import Failed, Ok
from ankusa.sinks.kafka import KafkaSink
from ankusa.sinks.kafka_options import parse_options
from ankusa.sinks.kafka_producer import configuration

SINK = KafkaSink(parse_options({"brokers": "a:1", "topic": "t"}), Destinations())


def test_no_error_is_ok() -> None:
    assert SINK._result(None) == Ok("acknowledged")


@pytest.mark.parametrize(
    ("code", "error_class"),
    [
        (KafkaError.MSG_SIZE_TOO_LARGE, "permanent"),
        (KafkaError.INVALID_RECORD, "permanent"),
        (KafkaError._MSG_TIMED_OUT, "timeout"),
        (KafkaError.UNKNOWN_TOPIC_OR_PART, "transient"),
        (KafkaError._UNKNOWN_TOPIC, "transient"),
        (KafkaError._QUEUE_FULL, "transient"),
        (KafkaError.NOT_ENOUGH_REPLICAS, "transient"),
        (KafkaError.NOT_ENOUGH_REPLICAS_AFTER_APPEND, "transient"),
        (KafkaError.TOPIC_AUTHORIZATION_FAILED, "transient"),
        (KafkaError.INVALID_MSG, "transient"),
        (KafkaError._ALL_BROKERS_DOWN, "transient"),
        (KafkaError._PURGE_QUEUE, "transient"),
        (KafkaError._FATAL, "transient"),
    ],
)
def test_the_class_of_a_report(code: int, error_class: str) -> None:
    result = SINK._result(KafkaError(code))
    assert isinstance(result, Failed) and result.error_class == error_class and result.reason


def test_the_producer_is_idempotent_waits_for_every_replica_and_makes_no_topic() -> None:
    options = parse_options(
        {"brokers": ["a:1", "b:2"], "topic": "t", "produce_timeout_ms": 1_234, "max_record_bytes": 5_000}
    )
    settings = configuration(options, alone=False)
    assert (settings["enable.idempotence"], settings["acks"]) == (True, "all")
    assert settings["allow.auto.create.topics"] is False
    assert (settings["bootstrap.servers"], settings["security.protocol"]) == ("a:1,b:2", "PLAINTEXT")
    assert (settings["message.timeout.ms"], settings["batch.size"]) == (1_234, 5_000)
    assert configuration(options, alone=True) == {**settings, "batch.num.messages": 1}


@pytest.mark.parametrize(
    ("ssl", "login", "protocol"),
    [(True, False, "SSL"), (False, True, "SASL_PLAINTEXT"), (True, True, "SASL_SSL")],
)
def test_logging_in(ssl: bool, login: bool, protocol: str) -> None:
    sasl = {"sasl": {"mechanism": "scram_sha_256", "username": "u", "password": "p"}} if login else {}
    settings = configuration(parse_options({"brokers": "a:1", "topic": "t", "ssl": ssl, **sasl}), alone=False)
    assert settings["security.protocol"] == protocol
    if login:
        assert [settings[f"sasl.{name}"] for name in ("mechanism", "username", "password")] == [
            "SCRAM-SHA-256",
            "u",
            "p",
        ]
