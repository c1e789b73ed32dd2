"""What every client of the cluster is told, made of the section `kafka` of the configuration.

Owns the settings that producers, consumers and admin clients of librdkafka share. What one of them needs beside these
is its own.
"""

from __future__ import annotations

import logging
import math
import time

from schemas.config import Kafka, KafkaSecurity

QUIET_S = 60.0

WAITS_S = 10.0
"""Between two lines of one that waits for brokers and asks several times a second."""

LARGEST_BYTES = 1_000_000_000
"""The most that librdkafka can be told a record may weigh. Where it is, the topic's `max.message.bytes` decides, which
may be there for nodes with other limits."""


class Seldom:
    """Whether it is time to say again that something waits: at once, then every `WAITS_S`."""

    def __init__(self) -> None:
        self._said_s = -math.inf

    def due(self) -> bool:
        now_s = time.monotonic()
        if now_s - self._said_s < WAITS_S:
            return False
        self._said_s = now_s
        return True


class OncePerKind(logging.Filter):
    """Lets one line of a kind through in `QUIET_S`. librdkafka tries to connect several times a second while a broker
    is away and says so each time; what that means for hooks is told by those who hold them."""

    def __init__(self) -> None:
        super().__init__()
        self._told: dict[str, float] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        kind = record.getMessage().split(" ", 1)[0]  # such as FAIL or GETPID
        now = time.monotonic()
        if now - self._told.get(kind, -QUIET_S) < QUIET_S:
            return False
        self._told[kind] = now
        return True


client_log = logging.getLogger("ankusa.kafka.client")
"""librdkafka writes here."""
client_log.addFilter(OncePerKind())

RECONNECT_MAX_MS = 1000
"""A broker that is back is found within a second of listening; one that stays away costs a connection a second."""

CONNECT_TIMEOUT_MS = 5000

_MECHANISMS = {"plain": "PLAIN", "scram_sha_256": "SCRAM-SHA-256", "scram_sha_512": "SCRAM-SHA-512"}

Settings = dict[str, str | int | float | bool]


def client_settings(kafka: Kafka, name: str) -> Settings:
    """For a client that brokers know as `ankusa-<name>`."""
    return {
        "bootstrap.servers": ",".join(kafka.brokers),
        "client.id": f"ankusa-{name}",
        "reconnect.backoff.ms": 50,
        "reconnect.backoff.max.ms": RECONNECT_MAX_MS,
        "socket.connection.setup.timeout.ms": CONNECT_TIMEOUT_MS,
        "socket.keepalive.enable": True,
        "log.connection.close": False,
        **_security(kafka.security),
    }


def _security(security: KafkaSecurity) -> Settings:
    protocol = ("SASL_" if security.sasl else "") + ("SSL" if security.tls else "PLAINTEXT")
    settings: Settings = {"security.protocol": protocol}
    files = {
        "ssl.ca.location": security.ca_file,
        "ssl.certificate.location": security.certificate_file,
        "ssl.key.location": security.key_file,
        "ssl.key.password": security.key_password,
    }
    settings |= {key: value for key, value in files.items() if value is not None}
    if security.sasl is not None:
        settings |= {
            "sasl.mechanism": _MECHANISMS[security.sasl.mechanism],
            "sasl.username": security.sasl.username,
            "sasl.password": security.sasl.password,
        }
    return settings
