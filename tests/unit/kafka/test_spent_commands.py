"""What becomes of commands in the topic `replays`: they go when their job has gone, and nothing comes back by that."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest

from ankusa.core import job as jobs
from ankusa.replay.answers import Started
from schemas import records
from schemas.records import JobPatch, JobState, Topic
from streams.kafka.replay_host import command_key
from streams.kafka.spent_commands import Command, SpentCommands, command_of, spent
from streams.kafka.topics import HISTORY_KEEP_MS
from tests.unit.kafka.records import Partition, job_start
from tests.unit.kafka.replaying import PARTITIONS, Log, Node
from tests.unit.store.entries import AT

NAMED = "00000000-0000-7000-8000-{:012x}".format
KEEP_MS = HISTORY_KEEP_MS


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    made = Log(tmp_path / "log")
    yield made
    made.close()


class Reader:
    """Reads the log's `replays`, two records at a time. `missed` is how many at its end the fold has not."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self.extra: Mapping[int, Sequence[tuple[bytes, bytes | None]]] = {}

    async def __call__(self, number: int, start: int) -> tuple[Sequence[tuple[bytes, bytes | None]], int, bool]:
        there = [*self._log.replays[number], *self.extra.get(number, ())]
        return there[start : start + 2], min(start + 2, len(there)), start + 2 >= len(there)


async def finished_job(node: Node, log: Log, number: int) -> str:
    """One of several commands, cancelled."""
    log.at += 10
    answer = await node.operator.start({"kind": "dlq", "job_id": NAMED(number), "sink": number % 100})
    assert isinstance(answer, Started) and answer.created, answer
    for patch in ({"rate": 7}, {"state": "paused"}, {"state": "cancelled"}):
        log.at += 1
        await node.operator.update(answer.job.id, patch)
    return answer.job.id


async def yes(number: int) -> bool:
    return True


def compacted(topic: Sequence[tuple[bytes, bytes | None]]) -> list[bytes]:
    """The values that a compaction of the whole topic leaves, in order."""
    last = {key: place for place, (key, _) in enumerate(topic)}
    return [value for place, (key, value) in enumerate(topic) if last[key] == place and value is not None]


def refolded(values: Sequence[bytes], path: Path) -> list[str]:
    """The ids of the jobs that a partition has which is made of these alone."""
    partition = Partition(path)
    for value in values:
        partition.add(Topic.REPLAYS, value)
    found = [job.id for job in partition.tables.jobs()]
    partition.tables.close()
    return found


def test_commands_of_dropped_jobs_go_and_the_topic_is_bounded(log: Log, tmp_path: Path) -> None:
    async def test() -> None:
        node, reader = Node(log, range(PARTITIONS)), Reader(log)
        sweep = SpentCommands(node.fleet, reader, yes)
        for number in range(jobs.KEPT_FINISHED + 5):
            await finished_job(node, log, number)
        before = [len(compacted(topic)) for topic in log.replays]
        for number in range(PARTITIONS):
            await sweep.run(number)
        assert [len(compacted(topic)) for topic in log.replays] == before  # pages of theirs may still be read
        log.at += KEEP_MS + 1
        for number in range(PARTITIONS):
            await sweep.run(number)
        left = [len(compacted(topic)) for topic in log.replays]
        assert left == [4 * jobs.KEPT_FINISHED] * PARTITIONS
        assert sweep.counts() == {"replays_topic": sum(before) - sum(left)}
        sizes = [len(topic) for topic in log.replays]
        for number in range(PARTITIONS):
            await sweep.run(number)
        assert [len(topic) for topic in log.replays] == sizes

    asyncio.run(test())
    for number, topic in enumerate(log.replays):
        wanted = [job.id for job in log.partitions[number].tables.jobs()]
        assert refolded(compacted(topic), tmp_path / f"refolded-{number}") == wanted


def test_wherever_a_compaction_is_no_job_comes_back(log: Log, tmp_path: Path) -> None:
    """A start that was sent again, paused, is behind the patches of the first one: it must not outlive that."""
    topic = log.replays[0]

    async def test() -> None:
        node, other = Node(log, (0,)), Node(log, (1, 2, 3))
        job_id = NAMED(1)
        await node.operator.start({"kind": "dlq", "job_id": job_id})
        log.at += 1
        await node.operator.update(job_id, {"state": "paused"})
        log.at += 1
        await other.operator.start({"kind": "dlq", "job_id": job_id})
        log.at += 1
        await node.operator.update(job_id, {"state": "cancelled"})
        await node.host.command(records.JobDrop(job_id, log.at))
        assert len(topic) == 5
        assert log.partitions[0].tables.job(job_id) is None
        log.at += KEEP_MS + 1
        await SpentCommands(node.fleet, Reader(log), yes).run(0)

    asyncio.run(test())
    assert len(topic) == 10
    for length in range(5, len(topic) + 1):
        assert refolded(compacted(topic[:length]), tmp_path / str(length)) == []


def test_what_is_not_folded_yet_is_left(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    """However old it is: a fleet that was away for long."""
    monkeypatch.setattr("streams.kafka.spent_commands.FOLDED_S", 0.2)

    async def test() -> None:
        node, reader = Node(log, (0,)), Reader(log)
        reader.extra = {0: [(b"x/start/5", job_start("x"))]}
        await SpentCommands(node.fleet, reader, yes).run(0)

    asyncio.run(test())
    assert log.sent == []


def test_nothing_goes_from_a_partition_that_is_anothers(log: Log) -> None:
    async def test() -> None:
        async def no(number: int) -> bool:
            return False

        node = Node(log, (0,))
        await node.host.command(JobPatch(NAMED(1), AT, JobState.PAUSED))
        log.at += KEEP_MS + 1
        sent = len(log.sent)
        await SpentCommands(node.fleet, Reader(log), no).run(0)
        assert len(log.sent) == sent
        await SpentCommands(node.fleet, Reader(log), yes).run(0)
        assert len(log.sent) == sent + 1

    asyncio.run(test())


def test_keys_are_those_of_commands() -> None:
    assert command_of(command_key(JobPatch("j", 12))) == Command("j", "patch", 12)
    assert command_of(b"j/start") == Command("j", "start", 0)  # of a release before
    for odd in (b"", b"\xff/start/1", b"j", b"j/stop/1", b"j/start/x", b"j/start/1/2", b"/"):
        assert command_of(odd) is None or odd == b"j/start", odd


def test_a_job_that_one_late_command_names_is_left_whole() -> None:
    keys = [b"j/start/1", b"j/patch/9", b"k/start/1", b"j/drop/10", b"k/drop/2", b"key", b"m/start/1"]
    assert spent(keys, lambda job_id: job_id == "m", 5) == [[b"k/start/1", b"k/drop/2"]]
