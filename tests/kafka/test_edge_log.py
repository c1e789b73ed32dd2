"""The log of an edge on a real broker; what it wrote is read by an independent client."""

from __future__ import annotations

import asyncio
from collections import Counter

import msgspec
import pytest
from kafka import KafkaAdminClient

from ankusa.clock import now_ms
from schemas.append import AnswerStatus
from schemas.config import Config, Quarantine, RateLimit, RateLimits
from streams.kafka import edge_log as edge_logs
from streams.kafka import flow
from streams.kafka import producer as producers
from streams.kafka.edge_log import KafkaEdgeLog
from streams.kafka.partitioning import partition_of_key
from streams.kafka.producer import EdgeProducer
from streams.kafka.topic_admin import TopicAdmin
from streams.kafka.topics import TopicNames
from tests.kafka import cluster
from tests.kafka.edge_log import deadline, held, hook, ids, running, stored_holds, stored_hooks
from tests.support.edge import run

PATIENT_S = 30.0


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker on a busy machine may be silent for longer than an edge lets a provider wait. When edges give up is the
    matter of `tests/unit/kafka/test_edge_log.py` and `test_broker_killed.py`."""
    monkeypatch.setattr(flow, "STALL_S", PATIENT_S)
    monkeypatch.setattr(edge_logs, "STALL_S", PATIENT_S)
    monkeypatch.setattr(edge_logs, "PROBE_S", PATIENT_S)
    monkeypatch.setattr(producers, "DELIVERY_TIMEOUT_MS", round(PATIENT_S * 1000))


@pytest.fixture
def config(broker: str) -> Config:
    config = cluster.configuration(broker)
    TopicAdmin(config).create()
    return config


@pytest.fixture
def names(config: Config) -> TopicNames:
    return TopicNames(config.kafka.prefix)


def test_what_is_answered_is_in_the_topic_once(config: Config, broker: str, names: TopicNames) -> None:
    hooks = [hook(b"body %d" % number) for number in range(1000)]

    async def body() -> None:
        async with running(config) as edge_log:
            for start in range(0, 1000, 256):
                answers = await edge_log.append(hooks[start : start + 256], deadline())
                assert [(answer.status, answer.id) for answer in answers] == [
                    (AnswerStatus.ACCEPTED, submission.entry.id) for submission in hooks[start : start + 256]
                ]

    run(body)
    stored = stored_hooks(broker, names.hooks)
    assert {(found.entry, found.body) for found in stored} == {(each.entry, each.body) for each in hooks}
    assert len(stored) == 1000
    # Each append is one commit, and each commit goes to the next partition.
    assert sorted(Counter((found.partition, found.offset) for found in stored).values()) == [232, 256, 256, 256]
    assert {found.partition for found in stored} == {0, 1, 2, 3}


def test_a_repeat_is_answered_as_if_it_were_none(config: Config, broker: str, names: TopicNames) -> None:
    """Whether it is one, the fold of the partition knows: both are in it."""

    async def body() -> None:
        async with running(config) as edge_log:
            for _ in range(2):
                (answer,) = await edge_log.append([hook(dedupe="evt_1")], deadline())
                assert answer.status is AnswerStatus.ACCEPTED

    run(body)
    partition = partition_of_key("default/orders/evt_1", 4)
    assert [found.partition for found in stored_hooks(broker, names.hooks)] == [partition, partition]


def test_hooks_go_where_their_keys_say_in_their_order(config: Config, broker: str, names: TopicNames) -> None:
    hooks = [hook(ordering=(None, f"cus_{number % 7}")) for number in range(200)]

    async def body() -> None:
        async with running(config) as edge_log:
            # Two at once, as the batcher does.
            await asyncio.gather(edge_log.append(hooks[:100], deadline()), edge_log.append(hooks[100:], deadline()))

    run(body)
    stored = stored_hooks(broker, names.hooks)
    for number in range(7):
        lane = [each.entry.id for each in hooks[number::7]]
        found = sorted(each for each in stored if each.entry.id in lane)
        assert ids(found) == lane
        assert {each.partition for each in found} == {partition_of_key(f"default/orders/cus_{number}", 4)}


def test_lanes_that_do_not_agree_go_by_their_source(config: Config, broker: str, names: TopicNames) -> None:
    hooks = [hook(ordering=("a", f"b{number}")) for number in range(20)]

    async def body() -> None:
        async with running(config, agreed=False) as edge_log:
            await edge_log.append(hooks, deadline())

    run(body)
    stored = stored_hooks(broker, names.hooks)
    assert {found.partition for found in stored} == {partition_of_key("default/orders", 4)}
    assert ids(sorted(stored)) == [each.entry.id for each in hooks]


def test_held_hooks_go_to_the_pens_topic(config: Config, broker: str, names: TopicNames) -> None:
    batch = [held(b"one"), hook(b"two"), held(b"three"), held(b"four", "other")]

    async def body() -> None:
        async with running(config) as edge_log:
            answers = await edge_log.append(batch, deadline())
            quarantined, accepted = AnswerStatus.QUARANTINED, AnswerStatus.ACCEPTED
            assert [answer.status for answer in answers] == [quarantined, accepted, quarantined, quarantined]

    run(body)
    stored = stored_holds(broker, names.quarantine)
    assert {(found.entry, found.body) for found in stored} == {(batch[i].entry, batch[i].body) for i in (0, 2, 3)}
    keys = {record.key for record in cluster.read_all(broker, names.quarantine)}
    assert keys == {b"orders", b"other"}
    assert [found.body for found in stored_hooks(broker, names.hooks)] == [b"two"]


def test_a_commit_stays_within_its_bytes_and_a_large_hook_goes_alone(
    config: Config, broker: str, names: TopicNames
) -> None:
    sizes = [400_000] * 5 + [config.http.max_body_bytes] + [100]
    hooks = [hook(bytes(size)) for size in sizes]

    async def body() -> None:
        async with running(config) as edge_log:
            answers = await edge_log.append(hooks, deadline())
            assert {answer.status for answer in answers} == {AnswerStatus.ACCEPTED}

    run(body)
    stored = sorted(stored_hooks(broker, names.hooks))
    first = stored[0].offset
    assert [(found.offset - first, len(found.body)) for found in stored] == [
        *((0, 400_000), (0, 400_000), (1, 400_000), (1, 400_000)),
        *((2, 400_000), (3, config.http.max_body_bytes), (4, 100)),
    ]


def test_past_its_deadline_a_batch_is_refused_and_never_stored(config: Config, broker: str, names: TopicNames) -> None:
    async def body() -> None:
        async with running(config) as edge_log:
            (late,) = await edge_log.append([hook(b"late")], now_ms() - 1)
            assert (late.status, late.reason) == (
                AnswerStatus.STORE_UNAVAILABLE,
                "deadline passed before the commit",
            )
            await edge_log.append([hook(b"in time")], deadline())

    run(body)
    assert [found.body for found in stored_hooks(broker, names.hooks)] == [b"in time"]


def test_limits_refuse_before_anything_is_sent(config: Config, broker: str, names: TopicNames) -> None:
    limited = msgspec.structs.replace(
        config,
        rate_limits=RateLimits(tenants={"acme": RateLimit(rate=0.001, burst=2)}),
        quarantine=Quarantine(burst=1, rate=0.001),
    )

    async def body() -> None:
        async with running(limited) as edge_log:
            batch = [hook(tenant="acme"), hook(tenant="acme"), hook(tenant="acme"), hook(), held(), held()]
            answers = await edge_log.append(batch, deadline())
            assert [answer.status for answer in answers] == [
                *(AnswerStatus.ACCEPTED, AnswerStatus.ACCEPTED, AnswerStatus.RATE_LIMITED, AnswerStatus.ACCEPTED),
                *(AnswerStatus.QUARANTINED, AnswerStatus.QUARANTINE_RATE_LIMITED),
            ]
            assert answers[2].retry_after_ms > 0
            edge_log.reload(config)
            (answer,) = await edge_log.append([hook(tenant="acme")], deadline())
            assert answer.status is AnswerStatus.ACCEPTED

    run(body)
    assert len(stored_hooks(broker, names.hooks)) == 4
    assert len(stored_holds(broker, names.quarantine)) == 1


def test_until_the_topics_are_checked_nothing_is_taken(config: Config, broker: str, names: TopicNames) -> None:
    async def body() -> None:
        edge_log = KafkaEdgeLog(config, EdgeProducer(config), lambda _: True, now_ms, 0)
        (answer,) = await edge_log.append([hook()], deadline())
        assert (answer.status, answer.reason) == (AnswerStatus.STORE_UNAVAILABLE, "the topics are not checked yet")
        assert await edge_log.probe() == "the topics are not checked yet"
        await edge_log.close()

    run(body)
    assert cluster.read_all(broker, names.hooks) == []


def test_a_probe_writes_a_commit_of_nothing_unless_hooks_flow(
    config: Config, broker: str, names: TopicNames, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(edge_logs, "PROBE_FRESH_S", PATIENT_S)

    async def body() -> None:
        async with running(config) as edge_log:
            assert await edge_log.probe() is None
            for _ in range(5):  # right behind it nothing more is written
                assert await edge_log.probe() is None

    run(body)
    assert len(cluster.read_all(broker, names.hooks)) == 1  # that of its opening
    assert stored_hooks(broker, names.hooks) == []


def test_a_topic_that_is_gone_is_no_place_to_write(
    config: Config, broker: str, names: TopicNames, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()  # here an edge gives up, after its own time

    def delete() -> None:
        admin = KafkaAdminClient(bootstrap_servers=broker)
        admin.delete_topics([names.hooks])
        admin.close()

    async def body() -> None:
        async with running(config) as edge_log:
            await asyncio.to_thread(delete)
            # Until then what was acknowledged before may still count, or the leader be silent.
            while names.hooks not in (await edge_log.probe() or ""):
                await asyncio.sleep(0.05)
            (answer,) = await edge_log.append([hook()], deadline())
            assert answer.status is AnswerStatus.STORE_UNAVAILABLE

    run(body)
