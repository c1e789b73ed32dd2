"""Durable accept: closed loop, 64 connections, 1 KB signed bodies, fsync on, against an empty server.

Two empty servers: the one of our listeners (uvicorn with the edge's protocol), and uvicorn as it comes. The loads take
turns, so that a machine whose speed changes changes it for all; rates are medians of the rounds. No delivery competes:
the source's sink takes one attempt at a time and never answers it. Loss is counted by opening the store afterwards:
every id answered 201 must be in it.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence

import uvloop

from ankusa.store.tables import Tables
from api.serving import bind
from tests.bench.load import Load, Result
from tests.bench.node import Folder, Node, signed_request, wait_for_port

CONNECTIONS = 64
ROUNDS = 5


def run(arguments: argparse.Namespace) -> None:
    with Folder() as folder, empty_server() as edge_port, empty_server("uvicorn") as uvicorn_port:
        silent = bind("127.0.0.1", 0)  # connects, and nobody ever reads
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/"
        node = Node(
            folder, url, dispatch={"concurrency": 1, "max_inflight": 1, "attempt_timeout_ms": 3_600_000}
        ).start()
        ports = {"empty server": edge_port, "uvicorn, empty": uvicorn_port, "ankusa": node.http}
        for port in ports.values():
            load(port, min(2, arguments.seconds))
        results: dict[str, list[Result]] = {name: [] for name in ports}
        node_us: dict[str, float] = {}
        for _ in range(ROUNDS):
            for name, port in ports.items():
                before = node.cpu_s()
                results[name].append(load(port, arguments.seconds / ROUNDS))
                if name == "ankusa":
                    node_us = {each: node.cpu_s()[each] - spent for each, spent in before.items()}
        memory = node.resident_mib()
        node.stop()
        silent.close()
        ids = [hook_id for result in results["ankusa"] for hook_id in result.ids]
        tables = Tables(folder / "data" / "store")
        lost = sum(tables.database.get("ids", hook_id.encode()) is None for hook_id in ids)
        stored = sum(1 for _ in tables.database.keys("ids", b"", b"\xff"))
        tables.close()
    for name, found in results.items():
        print(line(name, found))
    rate, p99_ms = median_rate(results["ankusa"]), _p99_ms(results["ankusa"])
    for name in ("empty server", "uvicorn, empty"):
        ratio, slower = rate / median_rate(results[name]), p99_ms / _p99_ms(results[name])
        print(f"against {name}: ratio {ratio:.2f}, p99 ratio {slower:.1f}")
    last = len(results["ankusa"][-1].latencies_ms)
    spent = ", ".join(f"{name} {seconds / last * 1e6:.0f}" for name, seconds in node_us.items())
    print(f"CPU us a hook: {spent}")
    print(f"answered 201 {len(ids)}, stored {stored}, lost {lost}, memory MiB {memory}")


@contextlib.contextmanager
def empty_server(*protocol: str) -> Iterator[int]:
    command = [sys.executable, "-m", "tests.bench.empty_server", "0", *protocol]
    process = subprocess.Popen(command, stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        port = int(process.stdout.readline())
        wait_for_port(port)
        yield port
    finally:
        process.kill()
        process.wait()


def load(port: int, seconds: float) -> Result:
    return uvloop.run(Load("127.0.0.1", port, signed_request(port), CONNECTIONS).closed(seconds))


def median_rate(results: Sequence[Result]) -> float:
    return statistics.median(result.rate for result in results)


def _p99_ms(results: Sequence[Result]) -> float:
    return statistics.median(result.percentile(0.99) for result in results)


def line(name: str, results: Sequence[Result]) -> str:
    answers = sum((result.answers for result in results), Counter[int]())
    p50_ms = statistics.median(result.percentile(0.5) for result in results)
    return (
        f"{name}: {median_rate(results):,.0f}/s ({', '.join(f'{result.rate:,.0f}' for result in results)}), "
        f"p50 {p50_ms:.1f} ms, p99 {_p99_ms(results):.1f} ms, answers {dict(answers)}"
    )
