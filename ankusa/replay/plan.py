"""Counting without moving: the plan of a dry run, and the total a started job is measured against (spec 05).

Owns reading in slices that let the event loop turn between them, so that live traffic is not held up; holds nothing
of the store open across a turn. Never publishes.
"""

from __future__ import annotations

import asyncio

from ankusa.core import job as jobs
from ankusa.core.pace import PAGE_ENTRIES
from ankusa.replay.answers import Plan
from ankusa.replay.dlq import DlqFilter, read
from ankusa.replay.ports import ReplayHost
from ankusa.replay.spec import StartSpec

COUNT_ENTRIES = 100_000
"""Entries that a start reads to know its total, about a second's work: past it the job starts without one, and
`remaining` stays unknown. A dry run has no such bound: it answers exactly, about a second per 100,000 entries."""


async def count(host: ReplayHost, wanted: DlqFilter) -> int | None:
    """How many rows match, None when that takes more than `COUNT_ENTRIES` to say. Raises StoreError."""
    if wanted.by_counts:
        return sum(dead for key, dead in host.dead_counts().items() if wanted.wants_key(key))
    total = scanned = 0
    cursor: bytes | None = None
    while scanned < COUNT_ENTRIES:
        entries, end = read(host, wanted, cursor, PAGE_ENTRIES)
        scanned += len(entries)
        total += sum(entry.row is not None for entry in entries)
        if end:
            return total
        cursor = entries[-1].key
        await asyncio.sleep(0)
    return None


async def make_plan(host: ReplayHost, spec: StartSpec, at: int) -> Plan:
    """What a job started at `at` with this filter would move. Raises StoreError."""
    wanted = DlqFilter(spec.filter, at)
    by_source: dict[str, int] = {}
    by_sink: dict[str, int] = {}
    oldest: int | None = None
    newest: int | None = None
    total = skipped = scanned = 0
    cursor: bytes | None = None
    while True:
        entries, end = read(host, wanted, cursor, PAGE_ENTRIES)
        scanned += len(entries)
        for entry in entries:
            skipped += entry.skipped
            if entry.row is None:
                continue
            total += 1
            newest = entry.row.at
            oldest = newest if oldest is None else oldest
            by_source[entry.row.source_id] = by_source.get(entry.row.source_id, 0) + 1
            key = entry.sink_key()
            by_sink[key] = by_sink.get(key, 0) + 1
        if end:
            break
        cursor = entries[-1].key
        await asyncio.sleep(0)
    return Plan(
        spec.kind,
        spec.filter,
        spec.rate,
        at,
        total,
        skipped,
        scanned,
        dict(sorted(by_source.items())),
        dict(sorted(by_sink.items())),
        oldest,
        newest,
        jobs.duration_ms(total, spec.rate),
    )
