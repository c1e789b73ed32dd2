"""A broker that asks for TLS and a log-in, and clients that have them, or not."""

from __future__ import annotations

import datetime
import ipaddress
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import msgspec
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from schemas.append import AnswerStatus
from schemas.config import Config, KafkaSasl, KafkaSecurity, SourceStore
from streams.kafka.clients import client_settings
from streams.kafka.topic_admin import ClusterError, TopicAdmin
from tests.kafka import cluster
from tests.kafka.edge_log import deadline, hook, running
from tests.kafka.nodes import serving
from tests.support import brokers
from tests.support.edge import run

PASSWORD = "hush-hush-hush"
WRONG = "loud-loud-loud"


class Secured(NamedTuple):
    """A broker's address and the certificate it shows, which is its own authority."""

    address: str
    ca_file: str


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    home = tmp_path_factory.mktemp("secured")
    key, certificate = self_signed()
    ca_file = home / "ca.pem"
    ca_file.write_text(certificate)
    inner, outer, controller = brokers.free_ports(3)
    jaas = f'org.apache.kafka.common.security.plain.PlainLoginModule required user_hook="{PASSWORD}";'
    settings = {
        "node.id": "1",
        "controller.quorum.voters": f"1@127.0.0.1:{controller}",
        "listeners": f"IN://127.0.0.1:{inner},OUT://127.0.0.1:{outer},CONTROLLER://127.0.0.1:{controller}",
        "advertised.listeners": f"IN://127.0.0.1:{inner},OUT://127.0.0.1:{outer}",
        "listener.security.protocol.map": "IN:PLAINTEXT,OUT:SASL_SSL,CONTROLLER:PLAINTEXT",
        "inter.broker.listener.name": "IN",
        "sasl.enabled.mechanisms": "PLAIN",
        "listener.name.out.plain.sasl.jaas.config": jaas,
        "listener.name.out.ssl.keystore.type": "PEM",
        "listener.name.out.ssl.keystore.certificate.chain": one_line(certificate),
        "listener.name.out.ssl.keystore.key": one_line(key),
    }
    server = brokers.required(lambda: brokers.Kafka(home, outer, outer, settings))
    try:
        yield Secured(f"127.0.0.1:{outer}", str(ca_file))
    finally:
        server.stop()


def self_signed() -> tuple[str, str]:
    """A key and a certificate for 127.0.0.1, as PEM."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "broker")])
    begins = datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(begins)
        .not_valid_after(begins.replace(year=2120))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    encoding = serialization.Encoding.PEM
    private = key.private_bytes(encoding, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    return private.decode(), certificate.public_bytes(encoding).decode()


def one_line(pem: str) -> str:
    """A PEM as a value of a properties file."""
    return pem.replace("\n", "\\n")


def config_of(secured: Secured, password: str = PASSWORD, ca_file: str | None = None) -> Config:
    config = cluster.configuration(secured.address)
    sasl = KafkaSasl(mechanism="plain", username="hook", password=password)
    security = KafkaSecurity(tls=True, ca_file=ca_file or secured.ca_file, sasl=sasl)
    return msgspec.structs.replace(config, kafka=msgspec.structs.replace(config.kafka, security=security))


def test_topics_edge_and_sources_have_the_way_in(secured: Secured, tmp_path: Path) -> None:
    config = config_of(secured)
    TopicAdmin(config).create()

    async def body() -> None:
        async with running(config) as edge_log:
            (answer,) = await edge_log.append([hook()], deadline())
            assert answer.status is AnswerStatus.ACCEPTED

    run(body)
    managed = msgspec.structs.replace(config, source_store=SourceStore(type="persistent"))
    with serving(tmp_path, managed) as node:
        node.accepted("orders")
        assert PASSWORD not in node.log()


def test_a_wrong_password_is_told_and_not_shown(secured: Secured) -> None:
    with pytest.raises(ClusterError, match=r"(?i)authentication") as caught:
        TopicAdmin(config_of(secured, WRONG), request_s=5.0).check()
    assert WRONG not in str(caught.value)


def test_another_authority_is_told(secured: Secured, tmp_path: Path) -> None:
    other = tmp_path / "other.pem"
    other.write_text(self_signed()[1])
    with pytest.raises(ClusterError, match=r"(?i)certificate"):
        TopicAdmin(config_of(secured, ca_file=str(other)), request_s=5.0).check()


@pytest.mark.parametrize(
    ("tls", "sasl", "protocol"),
    [(False, False, "PLAINTEXT"), (True, False, "SSL"), (False, True, "SASL_PLAINTEXT"), (True, True, "SASL_SSL")],
)
def test_what_clients_are_told(tls: bool, sasl: bool, protocol: str) -> None:
    login = KafkaSasl(mechanism="scram_sha_256", username="a", password="b")
    security = KafkaSecurity(tls=tls, certificate_file="/c", key_file="/k", sasl=login if sasl else None)
    config = cluster.configuration("a:1")
    settings = client_settings(msgspec.structs.replace(config.kafka, security=security), "x")
    assert settings["security.protocol"] == protocol
    assert settings["ssl.certificate.location"] == "/c"
    assert ("sasl.mechanism" in settings) is sasl
    assert settings.get("sasl.mechanism", "SCRAM-SHA-256") == "SCRAM-SHA-256"
