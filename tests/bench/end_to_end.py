"""Accept and deliver together: a closed loop at saturation, then open loops from the intended send to the sink."""

from __future__ import annotations

import argparse
import time
from collections import Counter

import uvloop

from tests.bench.accept import CONNECTIONS, empty_server, line, load
from tests.bench.load import Load, Result
from tests.bench.node import Folder, Node, Sink, signed_request

RATES = (1000, 2000, 3000)


def run(arguments: argparse.Namespace) -> None:
    with empty_server() as port:
        empty = load(port, min(5, arguments.seconds))
    print(line("empty server", [empty]))
    with Folder() as folder:
        sink = Sink(folder)
        node = Node(folder, sink.url, dispatch={"sink_concurrency": 32}).start()
        try:
            result, drained, undelivered = _saturate(node, sink, arguments.seconds)
            print(line("closed loop, accepted", [result]))
            print(f"ratio {result.rate / empty.rate:.2f}, undelivered then {undelivered}, drained in {drained:.1f} s")
            _count(result, sink)
            for rate in RATES:
                open_loop(node.http, sink, rate, arguments.seconds)
        finally:
            node.stop()
            sink.stop()


def _saturate(node: Node, sink: Sink, seconds: float) -> tuple[Result, float, int]:
    load = Load("127.0.0.1", node.http, signed_request(node.http), CONNECTIONS)
    result = uvloop.run(load.closed(seconds))
    undelivered = len(result.ids) - len(sink.lines())
    return result, drain(sink, len(result.ids)), undelivered


def drain(sink: Sink, count: int) -> float:
    """Wait until so many have come in all; seconds."""
    began = time.perf_counter()
    while len(sink.lines()) < count and time.perf_counter() < began + 120:
        time.sleep(0.1)
    return time.perf_counter() - began


def open_loop(port: int, sink: Sink, rate: int, seconds: float) -> None:
    """Offer `rate` hooks a second to a port, and print when they came to the sink."""
    before = len(sink.lines())
    load = Load("127.0.0.1", port, signed_request(port), CONNECTIONS)
    began_ms = time.time() * 1000  # noqa: TID251 - compared with the sink's wall clock
    result = uvloop.run(load.open(rate, seconds))
    drain(sink, before + len(result.ids))
    # The k-th hook was meant to leave at k / rate; hooks are told apart by id, whose order is the order of acceptance.
    arrivals = sorted(int(line[1]) for line in sink.lines()[before:])
    delays = sorted(arrival - (began_ms + index * 1000 / rate) for index, arrival in enumerate(arrivals))
    p50, p99 = delays[len(delays) // 2], delays[int(len(delays) * 0.99)]
    print(
        f"open loop {rate}/s for {seconds:.0f} s: accepted p50 {result.percentile(0.5):.1f} p99 "
        f"{result.percentile(0.99):.1f} ms; to the sink p50 {p50:.1f} p99 {p99:.1f} ms; answers {dict(result.answers)}"
    )
    _count(result, sink)


def _count(result: Result, sink: Sink) -> None:
    counts = Counter(line[0] for line in sink.lines())
    lost = sum(hook_id not in counts for hook_id in result.ids)
    duplicates = sum(counts[hook_id] - 1 for hook_id in result.ids if hook_id in counts)
    print(f"  answered 201 {len(result.ids)}, lost {lost}, duplicates {duplicates}")
