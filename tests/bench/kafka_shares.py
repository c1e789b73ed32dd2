"""Two workers that fold beside one, each held to a share of the time: how they scale where cores are not short.

Two workers at full speed, a broker and nothing else want more than two cores have. So each worker is stopped and let go
again (SIGSTOP, SIGCONT) twenty times a second, and runs for a fifth of the time, alone and beside another. The rate is
that of the changelog's growth, from a fifth to nine tenths of it; CPU for a row is that of the whole run.
"""

from __future__ import annotations

import argparse
import os
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from confluent_kafka import Consumer, TopicPartition
from msgspec import Struct

from schemas.records import Topic
from tests.bench.kafka_fleet import broker, cpu_s, end, hooks_folded, owns
from tests.bench.kafka_fold import PARTITIONS, SIZE, commits
from tests.bench.node import Folder
from tests.kafka.cluster import address
from tests.kafka.folding import Fleet, WorkerProcess, until
from tests.support.brokers import Kafka

ROWS = 200_000 // SIZE * SIZE
SHARE = 0.2
PERIOD_S = 0.05
FROM, TO = 0.2, 0.9
READ_S = 20.0


class Folded(Struct, frozen=True):
    """Rows a second of all workers together, and CPU microseconds a row by process."""

    rate: float
    cpu_us: dict[str, float]

    def __str__(self) -> str:
        return f"{self.rate:,.0f} rows/s; CPU us a row: {', '.join(f'{n} {us:.0f}' for n, us in self.cpu_us.items())}"


def run(arguments: argparse.Namespace) -> None:
    with Folder() as folder, broker(folder / "broker") as server:
        found = [_folded(server, folder / str(count), count) for count in (1, 2)]
    for count, folded in enumerate(found, 1):
        print(f"workers held to {SHARE:.0%} of the time: {count}: {folded}")
    print(f"two workers: {found[1].rate / found[0].rate:.2f} of one")


def _folded(server: Kafka, folder: Path, count: int) -> Folded:
    fleet = Fleet(address(server), partitions=PARTITIONS)
    started: list[WorkerProcess] = []
    try:
        for number in range(count):
            started.append(WorkerProcess(fleet, folder / str(number)))
            owns(started[-1], PARTITIONS // len(started))
        pids = {f"worker {number}": each.process.pid for number, each in enumerate(started, 1)} | {"broker": server.pid}
        with held(started):
            fleet.send(Topic.HOOKS, commits(ROWS))
            before = {name: cpu_s(pid) for name, pid in pids.items()}
            grown = _watched(fleet)
        spent = {name: cpu_s(pid) - before[name] for name, pid in pids.items()}
    finally:
        for each in started:
            end(each)
    return Folded(ROWS * _share_a_second(grown), {name: seconds / ROWS * 1e6 for name, seconds in spent.items()})


@contextmanager
def held(processes: Sequence[WorkerProcess]) -> Iterator[None]:
    """Let each run for `SHARE` of the time only, one a while after the other."""
    ended = threading.Event()

    def hold(pid: int, after_s: float) -> None:
        ended.wait(after_s)
        while not ended.is_set():
            os.kill(pid, signal.SIGSTOP)
            ended.wait((1 - SHARE) * PERIOD_S)
            os.kill(pid, signal.SIGCONT)
            ended.wait(SHARE * PERIOD_S)

    threads = [
        threading.Thread(target=hold, args=(each.process.pid, place * PERIOD_S / len(processes)))
        for place, each in enumerate(processes)
    ]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        ended.set()
        for thread in threads:
            thread.join()
        for each in processes:
            each.signal(signal.SIGCONT)


def _watched(fleet: Fleet) -> list[tuple[float, int]]:
    """Time and records of the changelog, until all hooks are folded."""
    consumer = Consumer({"bootstrap.servers": fleet.broker, "group.id": "nobody"})
    places = [TopicPartition(fleet.names.changelog, number) for number in range(fleet.partitions)]
    grown: list[tuple[float, int]] = []

    def folded() -> bool:
        grown.append((time.perf_counter(), sum(consumer.get_watermark_offsets(each, READ_S)[1] for each in places)))
        return hooks_folded(fleet)

    try:
        until(folded, "all hooks are folded", 300)
    finally:
        consumer.close()
    return grown


def _share_a_second(grown: Sequence[tuple[float, int]]) -> float:
    """How much of all the changelog grew by in a second, between two of its sizes."""
    first, last = grown[0][1], grown[-1][1]
    inside = [each for each in grown if FROM <= (each[1] - first) / (last - first) <= TO]
    grew, seconds = inside[-1][1] - inside[0][1], inside[-1][0] - inside[0][0]
    return grew / (last - first) / seconds
