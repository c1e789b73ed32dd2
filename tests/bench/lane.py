"""What a lane's members cost: with a thousand and with a million behind one head, resident size, claims a second of
other rows, the time of a promotion and of a sweep.

Each size is stored by one process and measured by another, so that what storing it took is not in the figures.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ankusa.clock import now_ms
from schemas import records
from schemas.records import Envelope, Outcome, OutcomeBatch, OutcomeKind, lane_key
from streams.local.lane_sweep import LaneSweep
from streams.local.log import LocalLog
from tests.bench.node import Folder
from tests.bench.scan import CLAIMS, _claim_rate, _hooks

SIZES = (1_000, 1_000_000)
PROMOTIONS = 400
GONE = 100_000
"""Members that go before promotions are measured again: what has gone must not cost either."""

KEY = lane_key("lanes", "bench", 0, "http", "k")


def run(arguments: argparse.Namespace) -> None:
    del arguments
    with Folder() as folder:
        for size in SIZES:
            found = measured(folder / str(size), size)
            print(f"{size:,} members: " + ", ".join(f"{name} {value:,.0f}" for name, value in found.items()))


def measured(path: Path, members: int) -> dict[str, float]:
    """The figures of one size, by two processes."""
    for step in ("store", "measure"):
        command = [sys.executable, "-m", "tests.bench.lane", step, str(path), str(members)]
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE)
    found: dict[str, float] = json.loads(done.stdout)
    return found


def _lane(members: int) -> Iterator[list[tuple[Envelope, bytes, bytes]]]:
    for start in range(0, members + 1, 256):
        batch = []
        for number in range(start, min(start + 256, members + 1)):
            envelope = Envelope(
                *(f"lane-{number:032d}", "bench", "lanes", 1, ("http",), (), "application/json", "k"),
                ordering_keys=("k",),
            )
            batch.append((envelope, records.encode(envelope), b"x" * 64))
        yield batch


async def _store(path: Path, members: int, others: int = CLAIMS) -> dict[str, Any]:
    log = LocalLog(path, now_ms)
    for hooks in (_hooks(others), _lane(members)):
        for batch in hooks:
            await log.commit(batch, [])
    log.close()
    return {}


async def _measure(path: Path, members: int) -> dict[str, Any]:
    log = LocalLog(path, now_ms)
    assert log.tables.lane_counts() == (1, members)
    found: dict[str, Any] = {"MiB resident, opened": _resident_mib(), "claims/s of others": _claim_rate(log)}
    found["us a promotion"] = _promote(log, PROMOTIONS)
    found["us a sweep's longest slice"] = _longest_slice(log)
    if members > GONE:
        _promote(log, GONE)
        found[f"us a promotion after {GONE:,}"] = _promote(log, PROMOTIONS)
        found["us a slice then"] = _longest_slice(log)
    found["MiB resident at the end"] = _resident_mib()
    log.close()
    return found


def _promote(log: LocalLog, count: int) -> float:
    """Deliver the head `count` times, each in a batch of its own; microseconds each."""
    began = time.perf_counter()
    for _ in range(count):
        lane = log.tables.lane(KEY)
        assert lane is not None
        row = log.tables.row(lane.head, 0)
        assert row is not None
        log.publish(OutcomeBatch((Outcome(lane.head, 0, row.generation, OutcomeKind.DELIVERED, 1, 1, 1),)))
    return (time.perf_counter() - began) / count * 1e6


def _longest_slice(log: LocalLog) -> float:
    """Of a second pass of the lane sweep: the first after a start has nothing to remember. Microseconds."""
    sweep, longest = LaneSweep(log), 0.0
    for _ in range(2):
        longest, began = 0.0, time.perf_counter()
        for _ in sweep.run():
            longest, began = max(longest, time.perf_counter() - began), time.perf_counter()
    return longest * 1e6


def _resident_mib() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


if __name__ == "__main__":
    step = {"store": _store, "measure": _measure}[sys.argv[1]]
    print(json.dumps(asyncio.run(step(Path(sys.argv[2]), int(sys.argv[3])))))
