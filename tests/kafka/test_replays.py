"""One replay over a fleet: one command, a part in each partition, exact counts while partitions move.

And a command that one partition refuses.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest

from ankusa.clock import now_ms
from ankusa.core.pressure import Pressure
from ankusa.demo.ask import ask
from ankusa.replay.answers import Started, StoreUnavailable
from ankusa.replay.operator import Operator
from ankusa.store.tables import Tables
from schemas import records
from schemas.records import Job, JobDrop, JobPatch, JobState, Outcome, OutcomeBatch, OutcomeKind, Topic, seq_of
from streams.kafka.compacted_reader import CompactedReader
from streams.kafka.fleet_log import FleetLog
from streams.kafka.log_producer import Delivered, LogProducer, open_producer
from streams.kafka.owned import OwnedPartitions
from streams.kafka.places import log_offset
from streams.kafka.replay_host import NodeReplays
from streams.kafka.replaying import Replaying
from streams.kafka.spent_commands import SpentCommands, take_all
from tests.kafka import folding
from tests.kafka.delivering import Admin, arrived, delivering_fleet, edge, ending, owns, worker
from tests.kafka.folding import DEADLINE_S, Fleet, in_loop, until, until_async
from tests.kafka.test_topics import alter
from tests.support.load import Load
from tests.support.marked_sink import SinkProcess
from tests.support.node_process import free_ports
from tests.unit.kafka.records import hooks

HOOKS = 1200


@pytest.mark.soak
def test_a_replay_moves_every_dead_row_once_while_a_partition_moves(broker: str, tmp_path: Path) -> None:
    """Started at one of two nodes; a third joins in the middle. What each node shows adds up."""
    fleet = delivering_fleet(broker)
    ports = free_ports(3)
    nodes = [Admin(port) for port in ports]
    with SinkProcess(tmp_path) as sink, edge(fleet, tmp_path / "edge") as served:
        sink.behave(status=410)
        processes = [worker(fleet, tmp_path / "first", sink.url, ports[0])]
        with ending(processes):
            owns(processes[0], 4)
            processes.append(worker(fleet, tmp_path / "second", sink.url, ports[1]))
            owns(processes[1], 2)
            with Load(served.http_port, "/webhooks/orders", most=HOOKS, connections=8) as load:
                load.wait_accepted(HOOKS)
            dead = len(load.accepted)
            until(lambda: sum(_dead(node) for node in nodes[:2]) == dead, "every row is dead")
            sink.behave(status=200)
            job = nodes[1].post("/v1/replays", {"kind": "dlq", "rate": 300})
            until(lambda: sum(_part(node, job["id"])["moved"] for node in nodes[:2]) > dead // 4, "some are moved")
            processes.append(worker(fleet, tmp_path / "third", sink.url, ports[2]))
            owns(processes[2], 1)
            arrived(sink, load.ids)
            # While a partition is on its way to its next owner, no node shows its part.
            until(lambda: sum(_part(node, job["id"])["delivered"] for node in nodes) == dead, "all is counted")
            until(lambda: all(_part(node, job["id"])["state"] == "done" for node in nodes), "the job is done")
            jobs = [_part(node, job["id"]) for node in nodes]
            print(f"\n{dead} dead; moved {[one['moved'] for one in jobs]}; arrived {sink.by_id.total()}")
            assert sum(one["moved"] for one in jobs) == dead
            assert sum(_dead(node) for node in nodes) == 0
            hook = next(iter(load.ids))
            shown = [node for node in nodes if _shows(node, hook)]
            assert len(shown) == 1
            for node in nodes:
                assert "ankusa_" in _metrics(node)
            for process in processes:
                assert process.stop() == 0, process.output()


def _dead(node: Admin) -> int:
    return int(node.get("/v1/dlq")["total"])


def _part(node: Admin, job_id: str) -> dict[str, Any]:
    """What a node shows of a job. One that owns nothing now shows nothing."""
    status, answer = ask(node.port, "GET", f"/v1/replays/{job_id}")
    return answer if status == 200 else {"moved": 0, "delivered": 0, "state": ""}


def _shows(node: Admin, hook_id: str) -> bool:
    return ask(node.port, "GET", f"/v1/hooks/{hook_id}")[0] == 200


def _metrics(node: Admin) -> str:
    with urlopen(f"http://127.0.0.1:{node.port}/metrics") as answer:
        return str(answer.read().decode())


class PickyProducer(LogProducer):
    """One that gets no record to the partitions in `refuses`. A broker can refuse a topic, or be away; nothing makes it
    refuse one partition of a topic at once."""

    refuses: frozenset[int] = frozenset()

    def send(
        self, topic: str, partition: int, value: bytes | None, key: bytes | None, at: int, delivered: Delivered
    ) -> None:
        if partition in self.refuses:
            asyncio.get_running_loop().call_soon(delivered, None, f"{topic}: refused")
        else:
            super().send(topic, partition, value, key, at, delivered)


class Replays:
    """The replays of a worker in this process: its operator, and the replayers of what it owns. They move nothing while
    its window is `full`."""

    def __init__(self, fleet: Fleet, owned: OwnedPartitions) -> None:
        self.owned = owned
        self.producer = PickyProducer(lambda: open_producer(fleet.config.kafka))
        names = {topic: fleet.topic(topic) for topic in (Topic.OUTCOMES, Topic.REPLAYS)}
        self.log = FleetLog(self.producer, names, now_ms)
        owned.on_assigned(self.log.add)
        owned.on_folded(lambda topic, number, offset: self.log.folded(number, topic))
        owned.on_revoked(self.log.leave)
        self.full = True
        self.replaying = Replaying(self.log, self.pressure)
        self.replaying.start(owned)
        self.operator = Operator(NodeReplays(self.log, fleet.partitions, self.pressure), self.replaying.wake)

    def pressure(self) -> Pressure:
        return Pressure(0, window_full=self.full)

    def part(self, number: int, job_id: str) -> Job | None:
        return self.log.partitions[number].tables.job(job_id)

    def tables(self) -> list[Tables]:
        return [partition.tables for _, partition in sorted(self.log.partitions.items())]


@asynccontextmanager
async def replays(fleet: Fleet, folder: Path) -> AsyncIterator[Replays]:
    """A worker that owns all partitions."""
    async with folding.worker(fleet, folder) as running:
        made = Replays(fleet, running.owned)
        await until_async(lambda: len(running.owned.folds) == fleet.partitions, "it owns all")
        try:
            yield made
        finally:
            await made.replaying.stop()
            await made.producer.close()


def _dead_rows(fleet: Fleet, count: int) -> None:
    """So many in each partition, each of a hook of its own."""
    for number in range(fleet.partitions):
        fleet.send(Topic.HOOKS, [(number, hooks(*(f"{number}-{index}" for index in range(count))))])
        places = [seq_of(log_offset(number, 0), index) for index in range(count)]
        died = tuple(Outcome(seq, 0, 0, OutcomeKind.DEAD, 1, 1, 1, error="why") for seq in places)
        fleet.send(Topic.OUTCOMES, [(number, records.encode(OutcomeBatch(died)))])


@in_loop
async def test_a_start_that_one_partition_refused_is_sent_to_it_again(broker: str, tmp_path: Path) -> None:
    """At the rate that the job has by then, and paused as it is; then it moves what it has to, as the others do."""
    fleet = Fleet(broker, partitions=4)
    await asyncio.to_thread(_dead_rows, fleet, 3)
    job_id = "00000000-0000-7000-8000-00000000feed"
    body = {"kind": "dlq", "job_id": job_id, "rate": 1000}
    async with replays(fleet, tmp_path) as node:

        def dead() -> list[int]:
            return [node.log.partitions[number].tables.counts.total()[2] for number in range(4)]

        await until_async(lambda: dead() == [3] * 4, "all rows are dead")
        node.producer.refuses = frozenset({1})
        assert isinstance(await node.operator.start(body), StoreUnavailable)
        assert isinstance(await node.operator.update(job_id, {"state": "paused", "rate": 400}), StoreUnavailable)
        node.producer.refuses = frozenset()
        answer = await node.operator.start(body)
        assert isinstance(answer, Started), answer
        assert not answer.created
        first, second = node.part(0, job_id), node.part(1, job_id)
        assert first is not None and second is not None
        assert (second.created_at, second.total) == (first.created_at, 3)
        assert (second.rate, second.state) == (100, JobState.PAUSED)
        node.full = False
        assert isinstance(await node.operator.update(job_id, {"state": "running"}), Job)
        await until_async(lambda: dead() == [0] * 4, "every part moves its own")
        await until_async(lambda: _whole(node, job_id).state is JobState.DONE, "the job is done")
        assert (_whole(node, job_id).moved, _whole(node, job_id).total) == (12, 12)


def _whole(node: Replays, job_id: str) -> Job:
    job = node.operator.get(job_id)
    assert isinstance(job, Job), job
    return job


@in_loop
async def test_commands_of_dropped_jobs_are_compacted_away(broker: str, tmp_path: Path) -> None:
    """And the jobs that are kept are there again, from the changelog and from what is left of the topic."""
    fleet = Fleet(broker, partitions=2)
    names = [f"00000000-0000-7000-8000-{number:012x}" for number in range(4)]
    gone, kept = set(names[:2]), set(names[2:])
    async with replays(fleet, tmp_path / "first") as node:
        for name in names:
            assert isinstance(await node.operator.start({"kind": "dlq", "job_id": name, "sink": 3}), Started)
            assert isinstance(await node.operator.update(name, {"rate": 7, "state": "cancelled"}), Job)
        host = NodeReplays(node.log, fleet.partitions, node.pressure)
        for name in sorted(gone):
            await host.command(JobDrop(name, now_ms()))
        read = CompactedReader.of(fleet.config, fleet.names.replays, take_all)
        sweep = SpentCommands(node.log, read, node.owned.still_owned, keep_ms=-60_000)
        for number in range(fleet.partitions):
            await sweep.run(number)
        await read.close()
        assert sweep.counts() == {"replays_topic": 2 * 3 * fleet.partitions}
        compacted = {"cleanup.policy": "compact", "segment.ms": "100", "min.cleanable.dirty.ratio": "0.01"}
        await asyncio.to_thread(alter, broker, fleet.names.replays, compacted)

        def commands() -> set[str]:
            records = fleet.read(fleet.names.replays)
            return {record.key.decode().split("/")[0] for record in records if record.value is not None}

        deadline = time.monotonic() + DEADLINE_S
        while await asyncio.to_thread(commands) != kept:
            assert time.monotonic() < deadline, "the topic is not compacted"
            # A segment is closed by the next record.
            await host.command(JobPatch(names[3], now_ms(), rate=8))
        live = [[job.id for job in tables.jobs()] for tables in node.tables()]
        assert [set(ids) for ids in live] == [kept, kept]
    refolded = await asyncio.to_thread(fleet.refolded, tmp_path / "refolded")
    assert [{key.decode() for key in refolded[number]["jobs"]} for number in range(2)] == [kept, kept]
    async with replays(fleet, tmp_path / "second") as node:
        assert [[job.id for job in tables.jobs()] for tables in node.tables()] == live
