"""Accepting on the Kafka host beside the embedded one: closed loop, 64 connections for each edge, 1 KB signed bodies.

An embedded node with fsync on, one edge, and two edges take the load in turn; a broker of the same machine acknowledges
the edges' commits. Rates are medians of the rounds. Nothing is delivered meanwhile: the embedded node's sink never
answers, and no worker runs. Loss is counted by reading the topic, and the embedded store, afterwards. What a hook costs
each process says more than the rate of two edges, which have no more cores than one.
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

import uvloop
from msgspec import Struct, field

from ankusa.store.tables import Tables
from api.serving import bind
from schemas import records
from schemas.records import Topic
from tests.bench.accept import CONNECTIONS, line, median_rate
from tests.bench.kafka_fleet import broker, cpu_s, new_fleet, read_topic
from tests.bench.load import Load, Result
from tests.bench.node import Folder, Node, signed_request
from tests.kafka.folding import Fleet
from tests.kafka.nodes import serving
from tests.support.node_process import children

ROUNDS = 3
WARM_S = 2.0
SINK = "http://127.0.0.1:9/never"


class _Loaded(Struct):
    """One of those that take the load in turn: their ports, their processes' CPU time by name, and what was seen."""

    ports: Sequence[int]
    cpu_s: Callable[[], Mapping[str, float]]
    results: list[Result] = field(default_factory=list)
    spent_s: dict[str, float] = field(default_factory=dict)

    def load(self, seconds: float) -> None:
        before = self.cpu_s()
        self.results.append(uvloop.run(_load(self.ports, seconds)))
        for name, spent_s in self.cpu_s().items():
            self.spent_s[name] = self.spent_s.get(name, 0.0) + spent_s - before[name]

    def forget(self) -> list[str]:
        """What was seen so far counts for nothing but loss: the ids of it."""
        ids = [hook_id for result in self.results for hook_id in result.ids]
        self.results, self.spent_s = [], {}
        return ids

    def spent(self) -> str:
        hooks = sum(len(result.ids) for result in self.results)
        return ", ".join(f"{name} {spent_s / hooks * 1e6:.0f}" for name, spent_s in self.spent_s.items())


def run(arguments: argparse.Namespace) -> None:
    with Folder() as folder, ExitStack() as stack:
        silent = stack.enter_context(bind("127.0.0.1", 0))  # connects, and nobody ever reads
        (folder / "node").mkdir()
        node = Node(
            folder / "node",
            f"http://127.0.0.1:{silent.getsockname()[1]}/",
            dispatch={"concurrency": 1, "max_inflight": 1, "attempt_timeout_ms": 3_600_000},
        ).start()
        server = stack.enter_context(broker(folder / "broker"))
        fleet = new_fleet(server, SINK)
        edges = [stack.enter_context(serving(folder / f"edge-{number}", fleet.config)) for number in (1, 2)]
        pids = [[edge.process.pid, *children(edge.process.pid)] for edge in edges]

        def spent(count: int) -> Callable[[], Mapping[str, float]]:
            return lambda: {
                **{f"edge {number}": sum(map(cpu_s, pids[number - 1])) for number in range(1, count + 1)},
                "broker": cpu_s(server.pid),
            }

        loaded = {
            "embedded host": _Loaded([node.http], node.cpu_s),
            "kafka, 1 edge": _Loaded([edges[0].http_port], spent(1)),
            "kafka, 2 edges": _Loaded([edge.http_port for edge in edges], spent(2)),
        }
        for each in loaded.values():
            each.load(WARM_S)
        stored_ids, sent_ids = _forget(loaded)
        for _ in range(ROUNDS):
            for each in loaded.values():
                each.load(arguments.seconds / ROUNDS)
        node.stop()
        embedded = median_rate(loaded["embedded host"].results)
        for name, each in loaded.items():
            print(f"{line(name, each.results)}, ratio {median_rate(each.results) / embedded:.2f}")
            print(f"  CPU us a hook: {each.spent()}")
        more_stored, more_sent = _forget(loaded)
        _print_loss("store", _in_store(folder / "node"), stored_ids + more_stored)
        _print_loss("topic", _in_topic(fleet), sent_ids + more_sent)


def _forget(loaded: Mapping[str, _Loaded]) -> tuple[list[str], list[str]]:
    """Ids answered 201 by the embedded node, and by edges."""
    ids = {name: each.forget() for name, each in loaded.items()}
    return ids.pop("embedded host"), [hook_id for some in ids.values() for hook_id in some]


async def _load(ports: Sequence[int], seconds: float) -> Result:
    loads = (Load("127.0.0.1", port, signed_request(port), CONNECTIONS).closed(seconds) for port in ports)
    first, *others = await asyncio.gather(*loads)
    for other in others:
        first.answers.update(other.answers)
        first.latencies_ms.extend(other.latencies_ms)
        first.ids.extend(other.ids)
    return first


def _in_store(folder: Path) -> list[str]:
    tables = Tables(folder / "data" / "store")
    try:
        return [key.decode() for key in tables.database.keys("ids", b"", b"\xff")]
    finally:
        tables.close()


def _in_topic(fleet: Fleet) -> list[str]:
    return [
        records.decode_envelope(envelope).id
        for value in read_topic(fleet, Topic.HOOKS)
        for envelope, _ in records.decode_commit(value)[1]
    ]


def _print_loss(where: str, found: Sequence[str], ids: Sequence[str]) -> None:
    kept = set(found)
    lost = sum(hook_id not in kept for hook_id in ids)
    print(f"answered 201 {len(ids)}, in the {where} {len(found)}, lost {lost}, twice {len(found) - len(kept)}")
