"""The Kafka host's fold: rows a second through a worker with its changelog, beside the same fold without Kafka.

One broker, four partitions, all on this machine: the worker shares its cores with the broker. The records are the same
in both: commits of 128 hooks, then outcomes of 128, which settle them. Target: 20,000 rows/s with the changelog. Then
commits of one hook, as edges write that are not busy: what a record costs. The CPU time of the worker's process, all
threads, says what it would take on cores of its own.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import uvloop

from ankusa.store.memory import StoreMemory
from ankusa.store.tables import Tables
from schemas import records
from schemas.records import Envelope, Outcome, OutcomeBatch, OutcomeKind, Topic
from streams.kafka import places
from streams.kafka.folding import PartitionFold
from streams.kafka.worker import Worker
from tests.bench.node import Folder
from tests.kafka.cluster import address, start
from tests.kafka.folding import Fleet, worker

PARTITIONS = 4
SIZE = 128
ROWS = 200_000
LARGE_ROWS = 1_000_000
SINGLE_ROWS = 20_000
AT = 1_700_000_000_000
BODY = b'{"order": 1234567, "state": "paid", "items": [1, 2, 3, 4], "note": "' + b"x" * 180 + b'"}'


def run(arguments: argparse.Namespace) -> None:
    rows = (LARGE_ROWS if arguments.large else ROWS) // SIZE * SIZE
    works = [
        Work("commits", Topic.HOOKS, rows, lambda: commits(rows)),
        Work("outcomes", Topic.OUTCOMES, rows, lambda: _outcomes(rows)),
        Work("commits of one hook", Topic.HOOKS, SINGLE_ROWS, lambda: commits(SINGLE_ROWS, 1)),
    ]
    with Folder() as folder:
        alone = _without_kafka(folder / "alone", works)
        (folder / "broker").mkdir()
        broker = start(folder / "broker")
        try:
            fleet = Fleet(address(broker), partitions=PARTITIONS)
            with_kafka = {}
            for work in works:
                fleet.send(work.topic, work.made())  # all of it before the worker starts: it has the cores
                with_kafka[work.name] = uvloop.run(_with_kafka(fleet, folder / "worker", work.rows))
        finally:
            broker.stop()
    for name, (rate, cpu_us) in with_kafka.items():
        rate_alone, cpu_us_alone = alone[name]
        print(f"{name}: {rate:,.0f} rows/s with Kafka and the changelog, {rate_alone:,.0f} without ", end="")
        print(f"(ratio {rate / rate_alone:.2f}); CPU {cpu_us:.0f} us and {cpu_us_alone:.0f} us a row")


class Work(NamedTuple):
    """`rows` moved by the records that `made` makes: `(partition, value)` each, the partitions in turn."""

    name: str
    topic: Topic
    rows: int
    made: Callable[[], Iterator[tuple[int, bytes]]]


def commits(rows: int, size: int = SIZE) -> Iterator[tuple[int, bytes]]:
    """Of `size` hooks each."""
    for commit in range(rows // size):
        framed = []
        for index in range(size):
            hook_id = f"{commit:030d}-{index:05d}"
            tenant_id = f"tenant-{(commit + index) % 10}"
            envelope = Envelope(hook_id, "orders", tenant_id, AT, ("http",), (), "application/json", hook_id)
            framed.append((records.encode(envelope), BODY))
        yield commit % PARTITIONS, records.encode_commit(AT, framed)


def _outcomes(rows: int) -> Iterator[tuple[int, bytes]]:
    for commit in range(rows // SIZE):
        number, offset = commit % PARTITIONS, commit // PARTITIONS
        seqs = (records.seq_of(places.log_offset(number, offset), index) for index in range(SIZE))
        items = tuple(Outcome(seq, 0, 0, OutcomeKind.DELIVERED, AT, AT, 1) for seq in seqs)
        yield number, records.encode(OutcomeBatch(items))


class _Stopwatch:
    """From its making: rows a second, and CPU microseconds a row of this process."""

    def __init__(self) -> None:
        self._began, self._cpu = time.perf_counter(), time.process_time()

    def figures(self, rows: int) -> tuple[float, float]:
        seconds, cpu_s = time.perf_counter() - self._began, time.process_time() - self._cpu
        return rows / seconds, cpu_s * 1e6 / rows


def _without_kafka(folder: Path, works: Sequence[Work]) -> dict[str, tuple[float, float]]:
    memory = StoreMemory.shared(PARTITIONS)
    tables = [Tables(folder / str(number), memory) for number in range(PARTITIONS)]
    folds = [PartitionFold(number, store) for number, store in enumerate(tables)]
    rates = {}
    for work in works:
        values = list(work.made())
        watch = _Stopwatch()
        for number, value in values:
            fold = folds[number]
            folded = fold.fold(work.topic, fold.offset(work.topic) + 1, AT, value)
            fold.sent(folded.turn, folded.turn, 0, AT)
        rates[work.name] = watch.figures(work.rows)
    for store in tables:
        store.close()
    return rates


async def _with_kafka(fleet: Fleet, folder: Path, rows: int) -> tuple[float, float]:
    """Figures from the first that a worker folds to the last transaction of the changelog."""
    async with worker(fleet, folder) as running:
        watch = None
        while _rows(running) < rows or not _sent(running):
            if watch is None and _rows(running) > 0:
                watch = _Stopwatch()
            await asyncio.sleep(0.005)
        assert watch is not None
        return watch.figures(rows)


def _rows(running: Worker) -> int:
    return sum(partition.fold.figures.rows for partition in running.table.store.partitions.values())


def _sent(running: Worker) -> bool:
    return not any(partition.sender.waiting for partition in running.table.store.partitions.values())
