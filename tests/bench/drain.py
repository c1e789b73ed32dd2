"""What a drain costs at least: stored hooks are read in order, posted with the product's client and deleted in batches,
by a loop that knows of no rows, tenants, slots or outcomes. Beside the same client posting the same bodies.

The difference between this and `deliver` is what the dispatcher and its fold cost.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from collections import Counter
from pathlib import Path

import uvloop
from pyreqwest.client import Client, ClientBuilder

from ankusa.clock import now_ms
from ankusa.store.database import Database
from schemas import records
from streams.local.log import LocalLog
from tests.bench.deliver import IN_FLIGHT, _fill, plain_rate
from tests.bench.node import Folder, Sink

BATCH = 128


def run(arguments: argparse.Namespace) -> None:
    del arguments
    plain = plain_rate()
    with Folder() as folder:
        sink = Sink(folder)
        try:
            ids = uvloop.run(_fill(folder))
            rate, spent_us = uvloop.run(_drain(sink.url, folder))
            counts = Counter(line[0] for line in sink.lines())
        finally:
            sink.stop()
    lost = sum(hook_id not in counts for hook_id in ids)
    print(f"plain loop: {plain:,.0f}/s ({IN_FLIGHT} in flight)")
    print(f"bare drain: {rate:,.0f}/s, ratio {rate / plain:.2f}, CPU {spent_us:.0f} us a hook")
    print(f"stored {len(ids)}, lost {lost}, duplicates {sum(counts.values()) - len(counts)}")


async def _drain(url: str, folder: Path) -> tuple[float, float]:
    """Hooks a second, and microseconds of CPU for one."""
    log = LocalLog(folder / "data" / "store", now_ms)
    database = log.tables.database
    try:
        async with ClientBuilder().follow_redirects(False).no_proxy().build() as client:
            spent, began = time.process_time(), time.perf_counter()
            count = await _posted(client, url, database)
            return count / (time.perf_counter() - began), (time.process_time() - spent) / count * 1e6
    finally:
        log.close()


async def _posted(client: Client, url: str, database: Database) -> int:
    stored = database.items("hooks", b"", b"\xff" * 9)
    done: list[bytes] = []
    count = 0

    def delete() -> None:
        batch = database.batch()
        for key in done:
            batch.delete(key, database.handles["hooks"])
        database.write(batch)
        done.clear()

    async def worker() -> None:
        nonlocal count
        for key, value in stored:
            framed, body = records.unframe_hook(value)
            envelope = records.decode_envelope(framed)
            headers = [("content-type", envelope.content_type or ""), *envelope.headers, ("x-ankusa-id", envelope.id)]
            async with client.post(url).headers(headers).body_bytes(body).build_streamed() as response:
                assert response.status == 200
                await response.body_reader.read(65_536)
            count += 1
            done.append(key)
            if len(done) >= BATCH:
                delete()

    await asyncio.gather(*(worker() for _ in range(IN_FLIGHT)))
    delete()
    return count
