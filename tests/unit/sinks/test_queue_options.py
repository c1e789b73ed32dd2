"""The options of the queue sinks: what may be written, the defaults, the field an error names, and no secret told."""

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from ankusa.sinks import (
    google_pubsub_options,
    kafka_options,
    nats_options,
    rabbitmq_options,
    redis_options,
    sqs_options,
)
from ankusa.sinks.contract import OptionError

SEED = "SU" + "A" * 56
SOUND: dict[str, dict[str, Any]] = {
    "kafka": {"brokers": ["a:9092"], "topic": "hooks"},
    "sqs": {"queue_url": "https://sqs.us-east-1.amazonaws.com/1/hooks", "region": "us-east-1"},
    "google_pubsub": {"project": "my-project", "topic": "hooks"},
    "rabbitmq": {"url": "amqp://localhost", "exchange": "hooks"},
    "nats": {"servers": ["a:4222"], "subject": "hooks.x"},
    "redis": {"url": "redis://localhost", "channel": "hooks"},
}
PARSERS: dict[str, Callable[[Mapping[str, Any]], Any]] = {
    "kafka": kafka_options.parse_options,
    "sqs": sqs_options.parse_options,
    "google_pubsub": google_pubsub_options.parse_options,
    "rabbitmq": rabbitmq_options.parse_options,
    "nats": nats_options.parse_options,
    "redis": redis_options.parse_options,
}


def parsed(type_: str, **changes: Any) -> Any:
    options = {**SOUND[type_], **changes}
    return PARSERS[type_]({key: value for key, value in options.items() if value != "absent"})


def test_the_defaults() -> None:
    kafka = parsed("kafka")
    assert (kafka.key, kafka.ssl, kafka.sasl) == (None, False, None)
    assert (kafka.produce_timeout_ms, kafka.max_record_bytes) == (5_000, 1_000_000)
    sqs = parsed("sqs")
    assert (sqs.endpoint, sqs.credentials) == ("https://sqs.us-east-1.amazonaws.com", None)
    assert (sqs.max_message_bytes, sqs.timeout_ms, sqs.linger_ms) == (1_048_576, 5_000, 5)
    assert (sqs.is_fifo, parsed("sqs", queue_url="https://h/1/a.fifo").is_fifo) == (False, True)
    pubsub = parsed("google_pubsub")
    assert (pubsub.endpoint, pubsub.auth, pubsub.ordering_key) == ("https://pubsub.googleapis.com", "metadata", None)
    assert (pubsub.max_message_bytes, pubsub.timeout_ms, pubsub.linger_ms) == (10_000_000, 5_000, 5)
    assert pubsub.path == "/v1/projects/my-project/topics/hooks:publish"
    assert parsed("google_pubsub", topic="a%b+c~d").path == "/v1/projects/my-project/topics/a%25b%2Bc~d:publish"
    rabbitmq = parsed("rabbitmq")
    assert (rabbitmq.routing_key, rabbitmq.confirm_timeout_ms, rabbitmq.max_inflight) == (None, 5_000, 256)
    assert parsed("nats").publish_timeout_ms == parsed("redis").publish_timeout_ms == 5_000
    for type_ in SOUND:
        assert parsed(type_).inline_max_bytes == 65_536
        if type_ != "google_pubsub":  # the node's HTTP clients have an idle time of their own
            assert parsed(type_).idle_timeout_ms == 600_000


@pytest.mark.parametrize(
    "written", ["a:9092,b:9093", ["a:9092", "b:9093"], ["a:9092, b:9093"], ["a:9092", "a:9092", "b:9093"]]
)
def test_addresses_are_a_list_or_one_text(written: Any) -> None:
    assert parsed("kafka", brokers=written).brokers == ("a:9092", "b:9093")
    assert parsed("nats", servers=["[::1]:4222"]).servers == ("[::1]:4222",)


def test_what_came_from_a_variable_is_text() -> None:
    assert parsed("rabbitmq", max_inflight="64", inline_max_bytes="8192").max_inflight == 64
    assert parsed("kafka", ssl="true").ssl is True
    assert parsed("nats", tls="false").tls is False


def test_the_published_spellings() -> None:
    sasl = {"mechanism": "scram_sha_512", "username": "u", "password": "p"}
    assert parsed("kafka", key="stripe", ssl=True, sasl=sasl).sasl.mechanism == "SCRAM-SHA-512"
    assert parsed("nats", auth={"username": "u", "password": "p"}).auth.username == "u"
    assert parsed("nats", auth={"nkey_seed": SEED, "jwt": "j"}).auth.jwt == "j"
    assert parsed("google_pubsub", auth="token", token="t").token == "t"
    assert parsed("sqs", access_key_id="a", secret_access_key="b", session_token="c").credentials.session_token == "c"
    assert parsed("redis", url="rediss://:p@h:6379/0").url == "rediss://:p@h:6379/0"


WRONG: list[tuple[str, dict[str, Any], str]] = [
    *((type_, {"nope": 1}, "nope") for type_ in SOUND),
    *((type_, {"inline_max_bytes": wrong}, "inline_max_bytes") for type_ in SOUND for wrong in (0, -1, "x", 1.5, True)),
    *(
        (t, {"idle_timeout_ms": wrong}, "idle_timeout_ms")
        for t in SOUND
        if t != "google_pubsub"
        for wrong in (-1, 10**12)
    ),
    *(
        ("kafka", {"brokers": wrong}, "brokers")
        for wrong in ("absent", [], "", [1], "a", "a:0", "a:65536", "u:p@a:9092")
    ),
    *(("kafka", {"brokers": wrong}, "brokers") for wrong in ("kafka://a:9092", {"a": 1}, ["a:9092", ""], "a:90 92")),
    *(("kafka", {"topic": wrong}, "topic") for wrong in ("absent", "", ".", "..", "a b", "a/b", "x" * 250, 1)),
    *(("kafka", {"key": wrong}, "key") for wrong in ("", 1, "a\nb")),
    *(("kafka", {"ssl": wrong}, "ssl") for wrong in (1, "yes", {})),
    ("kafka", {"sasl": "plain"}, "sasl"),
    ("kafka", {"sasl": {"mechanism": "gssapi", "username": "u", "password": "p"}}, "sasl.mechanism"),
    ("kafka", {"sasl": {"username": "u", "password": "p"}}, "sasl.mechanism"),
    ("kafka", {"sasl": {"mechanism": "plain", "username": "u"}}, "sasl.password"),
    ("kafka", {"sasl": {"mechanism": "plain", "username": "", "password": "p"}}, "sasl.username"),
    ("kafka", {"sasl": {"mechanism": "plain", "username": "u", "password": "p", "x": 1}}, "sasl.x"),
    *(("kafka", {"produce_timeout_ms": wrong}, "produce_timeout_ms") for wrong in (0, 3_600_001)),
    *(("kafka", {"max_record_bytes": wrong}, "max_record_bytes") for wrong in (999, 100_000_001)),
    *(
        ("sqs", {"queue_url": wrong}, "queue_url")
        for wrong in ("absent", "", "hooks", "ftp://h/1/a", "https://h", "https://h/")
    ),
    *(
        ("sqs", {"queue_url": wrong}, "queue_url")
        for wrong in ("https://u:hush@h/1/a", "https://h/1/a?x=1", "https://h:0/1/a")
    ),
    *(("sqs", {"region": wrong}, "region") for wrong in ("absent", "", "US EAST", "a.b")),
    *(("sqs", {"message_group_id": wrong}, "message_group_id") for wrong in ("", "a b", "x" * 129)),
    ("sqs", {"endpoint": "localhost:4566"}, "endpoint"),
    ("sqs", {"access_key_id": "a"}, "secret_access_key"),
    ("sqs", {"secret_access_key": "a"}, "access_key_id"),
    ("sqs", {"session_token": "a"}, "access_key_id"),
    *(("sqs", {"max_message_bytes": wrong}, "max_message_bytes") for wrong in (1_023, 1_048_577)),
    *(("sqs", {"linger_ms": wrong}, "linger_ms") for wrong in (-1, 1_001)),
    ("sqs", {"timeout_ms": 0}, "timeout_ms"),
    *(("google_pubsub", {"project": wrong}, "project") for wrong in ("absent", "", "X", "a/b", "1abcdef")),
    *(
        ("google_pubsub", {"topic": wrong}, "topic")
        for wrong in ("absent", "ab", "projects/p/topics/t", "googly", "a b c")
    ),
    *(
        ("google_pubsub", {"endpoint": wrong}, "endpoint")
        for wrong in ("h", "https://h/v1", "https://u:hush@h", "https://h?x")
    ),
    ("google_pubsub", {"auth": "magic"}, "auth"),
    ("google_pubsub", {"auth": "token"}, "token"),
    ("google_pubsub", {"token": "hush"}, "token"),
    ("google_pubsub", {"auth": "token", "token": "a\nb"}, "token"),
    ("google_pubsub", {"auth": "service_account"}, "credentials_file"),
    ("google_pubsub", {"credentials_file": "f"}, "credentials_file"),
    ("google_pubsub", {"ordering_key": ""}, "ordering_key"),
    *(("google_pubsub", {"max_message_bytes": wrong}, "max_message_bytes") for wrong in (1, 10_000_001)),
    *(
        ("rabbitmq", {"url": wrong}, "url")
        for wrong in ("absent", "", "localhost", "http://h", "amqp://", "amqp://h h", 1)
    ),
    *(("rabbitmq", {"exchange": wrong}, "exchange") for wrong in ("absent", "", "x" * 128)),
    ("rabbitmq", {"routing_key": "x" * 256}, "routing_key"),
    ("rabbitmq", {"exchange_type": "topic"}, "exchange_type"),
    *(("rabbitmq", {"max_inflight": wrong}, "max_inflight") for wrong in (0, 65_536, "many")),
    ("rabbitmq", {"confirm_timeout_ms": 0}, "confirm_timeout_ms"),
    *(("nats", {"servers": wrong}, "servers") for wrong in ("absent", [], "nats://a:4222", "a")),
    *(("nats", {"subject": wrong}, "subject") for wrong in ("absent", "", "a b", "a.*", ">", "a..b", ".a", "$JS.API")),
    ("nats", {"tls": "maybe"}, "tls"),
    ("nats", {"auth": {}}, "auth.username"),
    ("nats", {"auth": {"password": "p"}}, "auth.username"),
    ("nats", {"auth": {"username": "u"}}, "auth.password"),
    ("nats", {"auth": {"username": "u", "password": "p", "token": "t"}}, "auth.token"),
    ("nats", {"auth": {"token": "t", "password": "p"}}, "auth.password"),
    ("nats", {"auth": {"token": "t", "jwt": "j"}}, "auth.jwt"),
    ("nats", {"auth": {"nkey_seed": "SUhush"}}, "auth.nkey_seed"),
    ("nats", {"auth": {"seed": "x"}}, "auth.seed"),
    ("nats", {"publish_timeout_ms": 0}, "publish_timeout_ms"),
    *(
        ("redis", {"url": wrong}, "url")
        for wrong in ("absent", "h:6379", "http://h", "redis://h/x", "redis://h/0?ssl=no")
    ),
    *(
        ("redis", {"url": wrong}, "url")
        for wrong in ("redis://:hush@", "redis://:hush@h:99999", "redis://:hush@[::1", "unix:///s")
    ),
    *(("redis", {"channel": wrong}, "channel") for wrong in ("absent", "", "x" * 1_025)),
    ("redis", {"publish_timeout_ms": 3_600_001}, "publish_timeout_ms"),
]


@pytest.mark.parametrize(("type_", "changes", "field"), WRONG, ids=lambda value: str(value)[:60])
def test_the_error_names_the_field_and_quotes_no_value(type_: str, changes: dict[str, Any], field: str) -> None:
    with pytest.raises(OptionError) as caught:
        parsed(type_, **changes)
    assert caught.value.field == field
    assert "hush" not in str(caught.value)


@pytest.mark.parametrize(
    ("type_", "changes"),
    [
        ("kafka", {"sasl": {"mechanism": "plain", "username": "u", "password": "hush-word"}}),
        ("sqs", {"access_key_id": "a", "secret_access_key": "hush-word"}),
        ("google_pubsub", {"auth": "token", "token": "hush-word"}),
        ("rabbitmq", {"url": "amqp://u:hush-word@h"}),
        ("nats", {"auth": {"username": "u", "password": "hush-word"}}),
        ("nats", {"auth": {"token": "hush-word"}}),
        ("redis", {"url": "redis://:hush-word@h"}),
    ],
)
def test_what_must_not_be_told_is_known(type_: str, changes: dict[str, Any]) -> None:
    assert any(secret == "hush-word" for secret in parsed(type_, **changes).secrets)


def test_a_seed_and_a_jwt_must_not_be_told_either() -> None:
    assert {SEED, "jwt-text"} <= set(parsed("nats", auth={"nkey_seed": SEED, "jwt": "jwt-text"}).secrets)


def test_no_repr_shows_a_secret() -> None:
    sasl = {"mechanism": "plain", "username": "u", "password": "hush"}
    assert "hush" not in repr(parsed("kafka", sasl=sasl).sasl)
    assert "hush" not in repr(parsed("nats", auth={"token": "hush"}).auth)
    assert "hush" not in repr(parsed("sqs", access_key_id="a", secret_access_key="hush").credentials)
