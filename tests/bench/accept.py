"""Durable accept: closed loop, 64 connections, 1 KB signed bodies, fsync on, against an empty server.

No delivery competes: the source's sink takes one attempt at a time and never answers it. Loss is counted by opening the
store afterwards: every id answered 201 must be in it.
"""

from __future__ import annotations

import argparse
import subprocess
import sys

import uvloop

from ankusa.store.tables import Tables
from api.serving import bind
from tests.bench.load import Load, Result
from tests.bench.node import Folder, Node, signed_request, wait_for_port

CONNECTIONS = 64


def run(arguments: argparse.Namespace) -> None:
    empty = _empty(arguments.seconds)
    with Folder() as folder:
        silent = bind("127.0.0.1", 0)  # connects, and nobody ever reads
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/"
        node = Node(
            folder, url, dispatch={"concurrency": 1, "max_inflight": 1, "attempt_timeout_ms": 3_600_000}
        ).start()
        node_result = _load(node.http, arguments.seconds)
        memory = node.resident_mib()
        node.stop()
        silent.close()
        tables = Tables(folder / "data" / "store")
        lost = sum(tables.database.get("ids", hook_id.encode()) is None for hook_id in node_result.ids)
        stored = sum(1 for _ in tables.database.keys("ids", b"", b"\xff"))
        tables.close()
    print(_line("empty server", empty))
    print(_line("ankusa", node_result))
    slower = node_result.percentile(0.99) / empty.percentile(0.99)
    print(f"ratio {node_result.rate / empty.rate:.2f}, p99 ratio {slower:.1f}")
    print(f"answered 201 {len(node_result.ids)}, stored {stored}, lost {lost}, memory MiB {memory}")


def _empty(seconds: float) -> Result:
    process = subprocess.Popen([sys.executable, "-m", "tests.bench.empty_server", "0"], stdout=subprocess.PIPE)
    assert process.stdout is not None
    port = int(process.stdout.readline())
    wait_for_port(port)
    try:
        return _load(port, seconds)
    finally:
        process.kill()
        process.wait()


def _load(port: int, seconds: float) -> Result:
    async def go() -> Result:
        await Load("127.0.0.1", port, signed_request(port), CONNECTIONS).closed(min(2, seconds))
        return await Load("127.0.0.1", port, signed_request(port), CONNECTIONS).closed(seconds)

    return uvloop.run(go())


def _line(name: str, result: Result) -> str:
    return (
        f"{name}: {result.rate:,.0f}/s, p50 {result.percentile(0.5):.1f} ms, p99 {result.percentile(0.99):.1f} ms, "
        f"answers {dict(result.answers)}"
    )
