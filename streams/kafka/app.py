"""The Faust app of a worker: the group it joins, and what of Faust is used and what is not.

Used: membership of the group, assignment (copartitioned: one worker has a partition number of every topic), agents, the
life of tables. Not used: its web server, its topics, its changelog writing and reading, its standbys, its command line.
Owns Faust's settings and the translation of ours; nothing here runs.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable
from pathlib import Path

import faust
from faust.types import TopicT
from faust.types.auth import CredentialsT

from schemas.config import Config, KafkaSecurity
from schemas.records import Topic
from streams.kafka.known_brokers import REFRESH_MS
from streams.kafka.membership import HEARTBEAT_S, SESSION_S, Membership
from streams.kafka.owned import OwnedPartitions
from streams.kafka.partition import Opening
from streams.kafka.recovery import FoldTableManager
from streams.kafka.table import FoldTable
from streams.kafka.topics import TopicNames
from streams.kafka.transport import FoldTransport
from streams.kafka.unbroken import WHOLE

REBALANCE_S = 30.0
"""How long the group waits for a member to join again. A member answers within the two seconds that its partitions
have for their last transactions."""

REQUEST_S = 40.0
COMMIT_S = 1.0
"""Between commits of offsets. What was folded since is read once more by a new owner, and skipped by its markers."""

FETCH_BYTES = 1 << 20
"""Of one partition at a time; a larger record comes alone."""

QUEUED_RECORDS = 16
"""Of one topic, between the fetcher and the fold: a record is up to a megabyte or so."""

MECHANISMS = {"plain": "PLAIN", "scram_sha_256": "SCRAM-SHA-256", "scram_sha_512": "SCRAM-SHA-512"}


def build_app(config: Config, membership: Membership, following: Callable[[Topic, int], int | None]) -> faust.App:
    """An app of the group that folds the topics of `kafka.prefix`. `membership` hears what the group answers;
    `following` gives the offset after the last record folded of a topic in a partition, None while that is not open."""
    kafka = config.kafka
    app = faust.App(
        f"{kafka.prefix}workers",
        broker=[f"kafka://{broker}" for broker in kafka.brokers],
        broker_credentials=_credentials(kafka.security),
        broker_client_id="ankusa-worker",
        broker_session_timeout=SESSION_S,
        broker_heartbeat_interval=HEARTBEAT_S,
        broker_rebalance_timeout=REBALANCE_S,
        broker_request_timeout=REQUEST_S,
        broker_commit_interval=COMMIT_S,
        consumer_auto_offset_reset="earliest",
        consumer_metadata_max_age_ms=REFRESH_MS,
        consumer_max_fetch_size=FETCH_BYTES,
        stream_buffer_maxsize=QUEUED_RECORDS,
        stream_wait_empty=False,  # what is unfinished is read again, and skipped
        stream_recovery_delay=0.0,
        processing_guarantee="at_least_once",
        table_standby_replicas=0,
        TableManager=FoldTableManager,
        topic_allow_declare=False,
        topic_disable_leader=True,
        key_serializer="raw",
        value_serializer="raw",
        web_enabled=False,
        autodiscover=False,
        datadir=str(Path(config.node.data_dir) / "faust"),
        loghandlers=[],
    )
    transport = FoldTransport(app.conf.broker_consumer, app)
    transport.membership = membership
    by_name = {name: topic for topic, name in TopicNames(kafka.prefix).folded.items()}
    transport.whole = {name for name, topic in by_name.items() if topic in WHOLE}
    transport.following = lambda name, number: following(by_name[name], number) if name in by_name else None
    app.transport = transport
    return app


def build_table(app: faust.App, config: Config, opening: Opening, owned: OwnedPartitions) -> FoldTable:
    """The table that `app`'s agents fold into."""
    table = FoldTable(
        app,
        name="tables",
        key_type=bytes,
        value_type=bytes,
        partitions=config.kafka.partitions,
        changelog_topic=_topic(app, TopicNames(config.kafka.prefix).changelog),
    )
    table.opening, table.owned = opening, owned
    app.tables.add(table)
    return table


def folded_topics(app: faust.App, config: Config) -> dict[Topic, TopicT]:
    """The topics that the agents fold."""
    return {topic: _topic(app, name) for topic, name in TopicNames(config.kafka.prefix).folded.items()}


def _topic(app: faust.App, name: str) -> TopicT:
    return app.topic(name, key_type=bytes, value_type=bytes, key_serializer="raw", value_serializer="raw")


def _credentials(security: KafkaSecurity) -> CredentialsT | None:
    """As `clients.client_settings` tells librdkafka."""
    context: ssl.SSLContext | None = None
    if security.tls:
        context = ssl.create_default_context(cafile=security.ca_file)
        if security.certificate_file is not None:
            context.load_cert_chain(security.certificate_file, security.key_file, security.key_password)
    if security.sasl is not None:
        return faust.SASLCredentials(
            username=security.sasl.username,
            password=security.sasl.password,
            mechanism=MECHANISMS[security.sasl.mechanism],
            ssl_context=context,
        )
    return None if context is None else faust.SSLCredentials(context)
