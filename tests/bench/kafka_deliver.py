"""Delivery of the Kafka host beside the embedded one: hooks that are folded and due, drained to one sink.

In turn, for some rounds: an embedded node, one worker, two workers, all with 32 attempts at once to a sink that answers
at once; rates are medians. While a topic is filled and folded the sink holds what comes; the rate is from when it lets
go. Two workers, a broker and a sink on two cores have no more cores than one worker has, so that their rate says
little: what a hook costs each process is printed with it. Whether two workers deliver twice as much where cores are not
what is short is measured with a sink that takes 20 ms and 16 attempts at once for each worker, once with one and once
with two: then a worker's slots are its limit.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Sequence
from pathlib import Path

import uvloop

from tests.bench.kafka_fleet import Drain, Drained, broker, fill_store, fill_topic, hooks_folded, new_fleet, workers
from tests.bench.node import Folder, Node, Sink
from tests.kafka.folding import until
from tests.support.brokers import Kafka

ROUNDS = 3
HOOKS = 30_000
IN_FLIGHT = 32
HOLD_MS = 2_000
"""For each attempt while the topic is filled and folded: some hundred hooks of all."""

SLOW_MS = 20
SLOW_HOOKS = 8_000
"""For each worker."""

SLOW_IN_FLIGHT = 16


def run(arguments: argparse.Namespace) -> None:
    with Folder() as folder, broker(folder / "broker") as server:
        embedded: list[Drained] = []
        fleets: dict[int, list[Drained]] = {1: [], 2: []}
        for _ in range(ROUNDS):
            embedded.append(_embedded())
            for count, drains in fleets.items():
                drains.append(_fleet(server, count, HOOKS, IN_FLIGHT, 0))
        print(_line("embedded host", embedded, embedded))
        for count, drains in fleets.items():
            print(_line(f"kafka, workers: {count}", drains, embedded))
        slow = [_fleet(server, count, count * SLOW_HOOKS, SLOW_IN_FLIGHT, SLOW_MS) for count in (1, 2)]
        for count, drained in enumerate(slow, 1):
            print(f"sink of {SLOW_MS} ms, {SLOW_IN_FLIGHT} attempts at once for each of {count} workers: {drained}")
        print(f"two workers that wait for their sink: {slow[1].rate / slow[0].rate:.2f} of one")


def _line(name: str, drains: Sequence[Drained], embedded: Sequence[Drained]) -> str:
    rates = [drained.rate for drained in drains]
    rate = statistics.median(rates)
    ratio = rate / statistics.median(drained.rate for drained in embedded)
    cpu_us = {each: statistics.median(drained.cpu_us[each] for drained in drains) for each in drains[0].cpu_us}
    return (
        f"{name}: {rate:,.0f}/s ({', '.join(f'{each:,.0f}' for each in rates)}), ratio {ratio:.2f}; "
        f"lost {sum(drained.lost for drained in drains)}, duplicates {sum(drained.duplicates for drained in drains)}; "
        f"CPU us a hook: {', '.join(f'{each} {us:.0f}' for each, us in cpu_us.items())}"
    )


def _embedded() -> Drained:
    """What it costs includes the start of its processes."""
    with Folder() as folder:
        sink = Sink(folder)
        node = Node(folder, sink.url, dispatch={"sink_concurrency": None, "concurrency": IN_FLIGHT})
        try:
            ids = uvloop.run(fill_store(folder, HOOKS))
            drain = Drain(sink, {"sink": sink.pid})
            node.start()
            drained = drain.wait(ids)
            cpu_us = {name: spent_s / HOOKS * 1e6 for name, spent_s in node.cpu_s().items()}
            node.stop()
        finally:
            sink.stop()
    return drained.with_cpu(cpu_us)


def _fleet(server: Kafka, count: int, hooks: int, in_flight: int, delay_ms: int) -> Drained:
    with Folder() as folder:
        sink = Sink(folder)
        try:
            return _drained(server, folder, sink, count, hooks, in_flight, delay_ms)
        finally:
            sink.stop()


def _drained(server: Kafka, folder: Path, sink: Sink, count: int, hooks: int, in_flight: int, delay_ms: int) -> Drained:
    fleet = new_fleet(server, sink.url)
    with workers(fleet, folder, sink.url, count, {"concurrency": in_flight}) as started:
        sink.behave(delay_ms=HOLD_MS)
        ids = fill_topic(fleet, hooks)
        until(lambda: hooks_folded(fleet), "all hooks are folded", 300)
        sink.behave(delay_ms=delay_ms)
        time.sleep(HOLD_MS / 1000)  # until the last that was held is answered
        pids = {f"worker {number}": each.process.pid for number, each in enumerate(started, 1)}
        return Drain(sink, {**pids, "broker": server.pid, "sink": sink.pid}).wait(ids)
