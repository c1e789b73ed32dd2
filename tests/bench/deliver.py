"""Delivery: 100,000 stored hooks drained to a sink that answers at once, against the same client in a plain loop.

The plain loop posts the same bodies with the same headers, with as many requests in flight as the node has attempts.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from collections import Counter
from pathlib import Path

import uvloop
from pyreqwest.client import ClientBuilder

from ankusa.clock import now_ms, uuid7
from schemas import records
from schemas.records import Envelope
from streams.local.log import LocalLog
from tests.bench.node import BODY, Folder, Node, Sink

HOOKS = 100_000
IN_FLIGHT = 32
SINK_LINE_BYTES = 36 + len(" 1700000000000 -\n")
HEADERS = (("user-agent", "GitHub-Hookshot/bench"), ("x-github-event", "push"))


def run(arguments: argparse.Namespace) -> None:
    plain = plain_rate()
    with Folder() as folder:
        sink = Sink(folder)
        try:
            ids = uvloop.run(_fill(folder))
            node = Node(folder, sink.url, dispatch={"sink_concurrency": None, "concurrency": IN_FLIGHT})
            began = time.perf_counter()
            node.start()
            started = time.perf_counter()
            while sink.log_bytes() < HOOKS * SINK_LINE_BYTES and time.perf_counter() < began + 300:
                time.sleep(0.05)  # and nothing read meanwhile: that would take of the cores that are measured
            spent_s = node.cpu_s()
            counts = Counter(line[0] for line in sink.lines())
            arrivals = [int(line[1]) for line in sink.lines()]
            memory = node.resident_mib()
            node.stop()
        finally:
            sink.stop()
    seconds = (max(arrivals) - min(arrivals)) / 1000
    rate = len(arrivals) / seconds
    print(f"plain loop: {plain:,.0f}/s ({IN_FLIGHT} in flight)")
    print(f"ankusa: {rate:,.0f}/s, started in {started - began:.1f} s, memory MiB {memory}")
    lost = sum(hook_id not in counts for hook_id in ids)
    duplicates = sum(counts.values()) - len(counts)
    print(f"CPU us a hook: {', '.join(f'{name} {spent / HOOKS * 1e6:.0f}' for name, spent in spent_s.items())}")
    print(f"ratio {rate / plain:.2f}, stored {len(ids)}, lost {lost}, duplicates {duplicates}")


def plain_rate() -> float:
    """Hooks a second that the client posts in a plain loop, to a sink of its own."""
    with Folder() as folder:
        sink = Sink(folder)
        try:
            return uvloop.run(_plain(sink.url))
        finally:
            sink.stop()


async def _plain(url: str) -> float:
    async with ClientBuilder().follow_redirects(False).no_proxy().build() as client:
        numbers = iter(range(HOOKS))

        async def worker() -> None:
            for _ in numbers:
                headers = [("content-type", "application/json"), *HEADERS, ("x-ankusa-id", uuid7(now_ms()))]
                async with client.post(url).headers(headers).body_bytes(BODY).build_streamed() as response:
                    assert response.status == 200
                    await response.body_reader.read(65_536)

        began = time.perf_counter()
        await asyncio.gather(*(worker() for _ in range(IN_FLIGHT)))
        return HOOKS / (time.perf_counter() - began)


async def _fill(folder: Path) -> list[str]:
    log = LocalLog(folder / "data" / "store", now_ms)
    ids: list[str] = []
    while len(ids) < HOOKS:
        hooks = []
        for _ in range(min(250, HOOKS - len(ids))):
            hook_id = uuid7(now_ms())
            envelope = Envelope(hook_id, "bench", "default", now_ms(), ("http",), HEADERS, "application/json", hook_id)
            hooks.append((envelope, records.encode(envelope), BODY))
            ids.append(hook_id)
        await log.commit(hooks, [])
    log.close()
    return ids
