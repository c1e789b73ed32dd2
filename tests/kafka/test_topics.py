"""Topics on a real broker: made as they must be, made once, and what is wrong with one is told with the way out."""

from __future__ import annotations

import msgspec
import pytest
from kafka import KafkaAdminClient
from kafka.admin import ConfigResource, ConfigResourceType, NewPartitions, NewTopic

from schemas.config import Config, Http, Kafka
from streams.kafka.topic_admin import ClusterError, TopicAdmin
from streams.kafka.topics import TopicNames, hook_record_bytes, topic_specs
from tests.kafka import cluster

WORDS = ["hooks", "outcomes", "archive", "quarantine", "audit", "sources", "replays", "dead", "changelog"]


@pytest.fixture
def config(broker: str) -> Config:
    return cluster.configuration(broker)


def independent(broker: str) -> KafkaAdminClient:
    return KafkaAdminClient(bootstrap_servers=broker)


def alter(broker: str, topic: str, settings: dict[str, str]) -> None:
    client = independent(broker)
    client.alter_configs([ConfigResource(ConfigResourceType.TOPIC, topic, settings)])
    client.close()


def test_all_are_missing_before_and_none_after(config: Config) -> None:
    admin = TopicAdmin(config)
    wrong = admin.check()
    assert [one.topic for one in wrong] == [f"{config.kafka.prefix}{word}" for word in WORDS]
    assert all(one.missing and "ankusa topics create" in str(one) for one in wrong)
    assert len(admin.create()) == len(WORDS)
    assert admin.check() == []


def test_made_again_nothing_is_done(config: Config) -> None:
    TopicAdmin(config).create()
    assert TopicAdmin(config).create() == []


def test_another_client_sees_what_was_asked_for(config: Config, broker: str) -> None:
    TopicAdmin(config).create()
    client = independent(broker)
    names = TopicNames(config.kafka.prefix)
    told = {topic["topic"]: topic for topic in client.describe_topics([spec.name for spec in topic_specs(config)])}
    client.close()
    shapes = {name: len(topic["partitions"]) for name, topic in told.items()}
    assert shapes[names.hooks] == shapes[names.outcomes] == shapes[names.replays] == shapes[names.changelog] == 4
    assert shapes[names.sources] == shapes[names.audit] == 1


def test_a_topic_with_other_partitions_cannot_be_mended_here(config: Config, broker: str) -> None:
    names = TopicNames(config.kafka.prefix)
    TopicAdmin(config).create()
    client = independent(broker)
    client.create_partitions({names.outcomes: NewPartitions(6)})
    client.close()
    (wrong,) = TopicAdmin(config).check()
    assert wrong.topic == names.outcomes
    assert "has 6 partitions, wanted 4" in str(wrong)
    assert "kafka.partitions to 6" in str(wrong)
    assert TopicAdmin(config).create() == []  # left alone
    assert len(TopicAdmin(config).check()) == 1


def test_fewer_copies_are_told(config: Config) -> None:
    TopicAdmin(config).create()
    wanted = msgspec.structs.replace(config, kafka=msgspec.structs.replace(config.kafka, replication=2))
    wrong = TopicAdmin(wanted).check()
    assert {one.topic for one in wrong} == {spec.name for spec in topic_specs(config)}
    assert "has 1 copies of a partition, wanted 2" in str(wrong[0])
    assert "kafka-reassign-partitions.sh" in str(wrong[0])


def test_settings_are_compared_and_set(config: Config, broker: str) -> None:
    names = TopicNames(config.kafka.prefix)
    TopicAdmin(config).create()
    size_bytes = str(hook_record_bytes(config))
    alter(broker, names.hooks, {"retention.ms": "1000", "max.message.bytes": size_bytes, "cleanup.policy": "delete"})
    found = {(one.topic, one.key) for one in TopicAdmin(config).check()}
    # What was set before is gone with it: min.insync.replicas is the broker's default of 1 again, and that is enough.
    assert found == {(names.hooks, "retention.ms"), (names.hooks, "message.timestamp.type")}
    (done,) = TopicAdmin(config).create()
    assert "retention.ms=-1" in done
    assert TopicAdmin(config).check() == []


def test_longer_retention_and_larger_records_are_the_operators_choice(config: Config, broker: str) -> None:
    names = TopicNames(config.kafka.prefix)
    TopicAdmin(config).create()
    longer = {"retention.ms": "-1", "retention.bytes": "-1", "max.message.bytes": "20000000"}
    alter(broker, names.outcomes, {**longer, "cleanup.policy": "delete", "message.timestamp.type": "LogAppendTime"})
    assert TopicAdmin(config).check() == []


def test_larger_bodies_need_larger_records(config: Config) -> None:
    TopicAdmin(config).create()
    wanted = msgspec.structs.replace(config, http=Http(max_body_bytes=64_000_000))
    wrong = TopicAdmin(wanted).check()
    assert {one.key for one in wrong} == {"max.message.bytes"}
    TopicAdmin(wanted).create()
    assert TopicAdmin(wanted).check() == []
    assert TopicAdmin(config).check() == []  # and what takes more takes less


def test_an_uncompacted_table_topic_is_told(config: Config, broker: str) -> None:
    names = TopicNames(config.kafka.prefix)
    client = independent(broker)
    client.create_topics([NewTopic(names.sources, 1, 1)])
    client.close()
    (wrong,) = [one for one in TopicAdmin(config).check() if one.key == "cleanup.policy"]
    assert str(wrong).startswith(f"{names.sources}: cleanup.policy is delete, wanted exactly compact; run")


def test_more_copies_than_brokers_names_the_key(config: Config) -> None:
    kafka = msgspec.structs.replace(config.kafka, replication=3)
    with pytest.raises(ClusterError, match=r"kafka\.replication: the cluster has fewer brokers than the 3") as caught:
        TopicAdmin(msgspec.structs.replace(config, kafka=kafka)).create()
    assert caught.value.refused


def test_a_cluster_that_is_away_is_told_from_one_that_refuses() -> None:
    with pytest.raises(ClusterError, match="cannot describe") as caught:
        TopicAdmin(Config(kafka=Kafka(brokers=("127.0.0.1:1",))), request_s=0.5).check()
    assert not caught.value.refused


def test_larger_records_than_a_file_asks_for_are_told_of(config: Config, broker: str) -> None:
    """Hooks of nodes with other limits, which is no fault; but what is held of them must go into the changelog."""
    names = TopicNames(config.kafka.prefix)
    larger = msgspec.structs.replace(config, http=Http(max_body_bytes=16_000_000))
    TopicAdmin(larger).create()
    admin = TopicAdmin(larger)
    assert (admin.check(), admin.notes) == ([], [])
    admin = TopicAdmin(config)
    assert admin.check() == []
    assert [note.split(":")[0] for note in admin.notes] == [names.hooks, names.quarantine]
    alter(broker, names.quarantine, {"max.message.bytes": "99000000", "message.timestamp.type": "LogAppendTime"})
    for asked in (config, larger):
        wrong = [one for one in TopicAdmin(asked).check() if one.topic == names.changelog]
        assert [str(one).endswith("max.message.bytes=99000000") for one in wrong] == [True]
    alter(broker, names.changelog, {"max.message.bytes": "99000000"})
    assert names.changelog not in [one.topic for one in TopicAdmin(config).check() if one.key is None]
    alter(broker, names.hooks, {"max.message.bytes": "98000000", "message.timestamp.type": "LogAppendTime"})
    for asked in (config, larger):
        (one,) = [one for one in TopicAdmin(asked).check() if one.key is None]
        assert str(one).startswith(f"{names.dead}: takes records of ")
        assert f"and {names.hooks} of 98000000: nothing before a larger hook that dies" in str(one)
        assert str(one).endswith("max.message.bytes=98000000")
    alter(broker, names.dead, {"max.message.bytes": "98000000"})
    assert [one for one in TopicAdmin(config).check() if one.key is None] == []
