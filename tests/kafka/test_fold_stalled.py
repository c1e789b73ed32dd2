"""A partition whose changelog nobody can write, on three brokers of which the one that has it is killed: the worker's
other partitions are folded on, and it is folded from where it stood once that broker is back."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from schemas.records import Topic
from streams.kafka import sender
from streams.kafka.app import FETCH_BYTES, QUEUED_RECORDS
from streams.kafka.topics import TopicNames
from streams.kafka.worker import Worker
from tests.kafka import cluster
from tests.kafka.folding import Fleet, in_loop, same, until, until_async, worker
from tests.property.refold import content
from tests.support import brokers
from tests.unit.kafka.records import hooks

# The event loop of Faust's consumer thread is left to the collector, with its sockets.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning", "ignore::ResourceWarning")

BOUND_BYTES = 32 << 10

COMMITS, HOOKS = 100, 16
"""Of each partition, and of each commit."""

BODY = bytes(2500)
COMMIT_BYTES = HOOKS * len(BODY)
"""At least: all commits of a partition are four times what is fetched at once."""

STALLED, ALIVE = 0, 1


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[list[brokers.Kafka]]:
    with cluster.three(tmp_path / "brokers") as servers:
        yield servers


def _fleet(servers: list[brokers.Kafka]) -> Fleet:
    """Partition 0 of the changelog is on the first broker alone, and all else on the others."""
    prefix = cluster.new_prefix()
    names = TopicNames(prefix)
    topics = [*names.folded.values(), names.changelog]
    wanted = [NewTopic(name, 2, replica_assignment=[[1 if name == names.changelog else 2], [3]]) for name in topics]
    until(lambda: _made(cluster.address(servers[1]), wanted), "the topics are made")
    plain = cluster.configuration(cluster.address(servers[1]), partitions=2).kafka
    kafka = msgspec.structs.replace(plain, brokers=cluster.addresses(servers), prefix=prefix)
    return Fleet(cluster.address(servers[1]), kafka=kafka)


def _made(address: str, wanted: list[NewTopic]) -> bool:
    """Whether the topics are there, once they were asked for. A client may drop a request with its first connection,
    and does not send it again."""
    admin = AdminClient({"bootstrap.servers": address})
    for future in admin.create_topics(wanted).values():
        try:
            future.result(20)
        except KafkaException as error:
            if error.args[0].code() == KafkaError._DESTROY_BROKER:
                return False
            if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise
    return True


def _send(fleet: Fleet, first: int, end: int) -> None:
    fleet.send(
        Topic.HOOKS,
        (
            (number, hooks(*(f"{number}-{commit}-{index}" for index in range(HOOKS)), body=BODY))
            for commit in range(first, end)
            for number in (STALLED, ALIVE)
        ),
    )


def _folded(running: Worker, number: int) -> int:
    return running.table.store.partitions[number].fold.offset(Topic.HOOKS) + 1


@pytest.mark.fault
@in_loop
async def test_the_others_are_folded_on(
    servers: list[brokers.Kafka], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sender, "QUEUE_BYTES", BOUND_BYTES)
    fleet = await asyncio.to_thread(_fleet, servers)
    heard: list[tuple[int, bool]] = []
    async with worker(fleet, tmp_path / "worker") as running:
        running.owned.on_stalled(lambda number, now: heard.append((number, now)))
        await until_async(lambda: len(running.owned.tables) == 2, "both partitions are owned")
        _send(fleet, 0, 1)
        await until_async(lambda: fleet.everything_committed(), "the first are folded")

        servers[0].kill()
        _send(fleet, 1, COMMITS)
        await until_async(lambda: _folded(running, ALIVE) == COMMITS, "the other partition is folded")
        await until_async(lambda: _committed(fleet, ALIVE) == COMMITS, "and committed")
        stalled = running.table.store.partitions[STALLED]
        assert stalled.lost is None
        assert [now for number, now in heard if number == STALLED][-1:] == [True]  # none of its rows is claimed
        assert _committed(fleet, STALLED) == 1
        assert stalled.sender.queued_bytes < 2 * BOUND_BYTES
        assert _folded(running, STALLED) < COMMITS
        waiting = running.table.store.in_turn[STALLED].waiting
        assert waiting * COMMIT_BYTES < FETCH_BYTES + QUEUED_RECORDS * COMMIT_BYTES

        servers[0].start_again()
        await until_async(lambda: fleet.everything_committed(), "all is folded")
        assert [now for number, now in heard if number == STALLED][-1:] == [False]
        found = {number: content(partition.fold.tables) for number, partition in running.table.store.partitions.items()}
    wanted = await asyncio.to_thread(fleet.refolded, tmp_path / "refolded")
    for number in (STALLED, ALIVE):
        same(found[number], wanted[number])


def _committed(fleet: Fleet, number: int) -> int:
    return fleet.committed()[fleet.names.hooks, number][0]
