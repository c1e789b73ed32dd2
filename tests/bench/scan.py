"""Scan cost: claims per second with few and many rows pending, and after many settled ones.

A claim is an index entry found, its row read and its hook read. Each store is opened again before it is measured, and
what a claim has read is forgotten when it is given back: else a small store would be read from memory, and a large one
from its files, and the difference would say nothing of the scan.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import time
from collections.abc import Iterator
from pathlib import Path

import uvloop

from ankusa.clock import now_ms
from ankusa.core.window import Limits
from ankusa.dispatch.claims import Claims
from schemas import records
from schemas.config import Dispatch
from schemas.records import Envelope, Outcome, OutcomeBatch, OutcomeKind
from streams.local.dispatch_host import LocalDispatchHost
from streams.local.log import LocalLog
from tests.bench.node import Folder

CLAIMS = 20_000
SETTLED = 500_000
PASSES = 5


def run(arguments: argparse.Namespace) -> None:
    sizes = [1_000, 100_000, 1_000_000] + ([5_000_000] if arguments.large else [])
    rates: dict[str, float] = {}
    with Folder() as folder:
        for size in sizes:
            rates[f"{size:,} pending"] = uvloop.run(_pending(folder / str(size), size))
        rates[f"1,000 pending after {SETTLED:,} settled"] = uvloop.run(_settled(folder / "settled"))
    for name, rate in rates.items():
        print(f"{name}: {rate:,.0f} claims/s")
    print(f"slowest / fastest {min(rates.values()) / max(rates.values()):.2f}")


def _hooks(count: int) -> Iterator[list[tuple[Envelope, bytes, bytes]]]:
    number = 0
    while number < count:
        batch = []
        for _ in range(min(256, count - number)):
            envelope = Envelope(
                f"{number:036d}", "bench", f"tenant-{number % 10}", 1, ("http",), (), "application/json", "k"
            )
            batch.append((envelope, records.encode(envelope), b"x" * 64))
            number += 1
        yield batch


async def _open(path: Path) -> LocalLog:
    return LocalLog(path, now_ms)


async def _pending(path: Path, size: int) -> float:
    log = await _open(path)
    for batch in _hooks(size):
        await log.commit(batch, [])
    return await _measured(log)


async def _measured(log: LocalLog) -> float:
    """The median of several passes, each on a store that was just opened, once RocksDB has put its files in order."""
    rates = []
    for _ in range(PASSES):
        while any(log.tables.database.background().values()):
            await asyncio.sleep(0.1)
        log.close()
        log = await _open(log.path)
        rates.append(_claim_rate(log))
    log.close()
    return statistics.median(rates)


async def _settled(path: Path) -> float:
    log = await _open(path)
    for batch in _hooks(SETTLED):
        answers = await log.commit(batch, [])
        items = tuple(Outcome(a.seq, 0, 0, OutcomeKind.DELIVERED, 1, 1, 1) for a in answers)  # type: ignore[union-attr]
        _claim_all(log, len(items))
        log.publish(OutcomeBatch(items))
    for batch in _hooks(1000):
        await log.commit(batch, [])
    return await _measured(log)


def _claim_all(log: LocalLog, count: int) -> None:
    """Move the low-water cursors as a dispatcher does."""
    at = log.now()
    for tenant in list(log.tables.live.turn(at)):
        log.tables.live.page(tenant, at, count, lambda *_: True)


def _claim_rate(log: LocalLog) -> float:
    """Claims a second: scan and claim in the dispatcher's own batches of 128, every row there is before any is given
    back."""
    claims = Claims(LocalDispatchHost(log), Dispatch())
    claims.window.limits = Limits(1_000_000, 1 << 40)
    claims.window.default_limits = claims.window.limits
    taken = 0
    began = time.perf_counter()
    while taken < CLAIMS:
        page = list(claims.scan(log.now()))
        taken += len(page)
        if not page:
            for claim in list(claims.by_place.values()):
                claims.give_back(claim)
                log.tables.recent.forget(claim.seq)
    return taken / (time.perf_counter() - began)
