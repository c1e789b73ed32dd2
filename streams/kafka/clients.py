"""What every client of the cluster is told, made of the section `kafka` of the configuration.

Owns the settings that producers, consumers and admin clients of librdkafka share. What one of them needs beside these
is its own.
"""

from __future__ import annotations

import logging

from schemas.config import Kafka, KafkaSecurity

log = logging.getLogger("ankusa.kafka")
"""librdkafka writes here. Its lines are bounded like all others: by place and time (`ankusa/logs.py`)."""

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
