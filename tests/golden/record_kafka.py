"""Records the topics of a partition on a real broker, as a worker folds them.

`python -m tests.golden.record_kafka NAME`, with a broker's jars installed.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from collections.abc import Mapping
from functools import partial
from pathlib import Path

import msgspec

from ankusa.store import keys
from schemas import records
from schemas.records import (
    Breaker,
    BreakerMove,
    BreakerState,
    CheckIn,
    Envelope,
    Held,
    JobPatch,
    JobStart,
    JobState,
    OutcomeBatch,
    OutcomeKind,
    Page,
    PenEntry,
    Purge,
    Revival,
    Topic,
    decode_row,
)
from streams.kafka.folding import PartitionFold
from streams.kafka.places import log_offset
from tests.golden.record import AT, _batch, _held_bytes, _job, _outcome, recorded_to
from tests.kafka.cluster import address, start
from tests.kafka.folding import FOLDED_TOPICS, Fleet, until_async, worker
from tests.property.changelog import Record
from tests.property.refold import content

Tables = Mapping[str, Mapping[bytes, bytes]]


def comparable(tables: Tables) -> dict[str, dict[bytes, bytes]]:
    """What two hosts must have in common. The number of a place in a lane is a turn, which is a count of records here
    and an offset there: of rows it is left out, and of members their order stands for it."""
    found = {family: dict(entries) for family, entries in tables.items()}
    found["rows"] = {
        key: records.encode(msgspec.structs.replace(decode_row(value), place=0)) for key, value in found["rows"].items()
    }
    members = [(keys.member_lane(key), keys.split_member_key(key)[1]) for key in sorted(found["members"])]
    found["members"] = {b"%d" % place: repr(member).encode() for place, member in enumerate(members)}
    return found


def _commit(first: int, count: int, *, tenant: str = "acme", sinks: int = 1, **fields: object) -> bytes:
    hooks = []
    for number in range(first, first + count):
        hook_id = f"018bcfe5-6800-7000-8000-{number:012d}"
        envelope = Envelope(
            *(hook_id, "orders", tenant, AT, ("http",) * sinks, (("x-event", "paid"),), "application/json", hook_id),
            **fields,  # type: ignore[arg-type]
        )
        hooks.append((records.encode(envelope), b'{"n": %d}' % number))
    return records.encode_commit(AT, hooks)


def _seq(offset: int, index: int) -> int:
    return records.seq_of(log_offset(0, offset), index)


def script() -> list[tuple[Topic, bytes]]:
    """What producers send, each topic in its order: commits, outcomes late and stale ones, a lane, a job, the pen."""
    kind = OutcomeKind
    lane = {"ordering_keys": ("order-1",)}
    held = [Held(f"held-{n}", "orders", "acme", AT + n, "POST", "/webhooks/orders", (), "signature", 9) for n in (1, 2)]
    breaker = Breaker(BreakerState.OPEN, 5, 1, AT + 30_000, AT)
    outcomes: list[records.OutcomeRecord] = [
        _batch(_outcome(_seq(0, 0), 0, 0, kind.DELIVERED), _outcome(_seq(0, 0), 1, 0, kind.RETRY)),
        _batch(_outcome(_seq(0, 1), 1, 0, kind.DEAD), _outcome(_seq(1, 0), 0, 0, kind.DEAD)),
        _batch(_outcome(_seq(1, 1), 0, 0, kind.DELIVERED), _outcome(_seq(1, 1), 0, 0, kind.DEAD)),
        _batch(_outcome(_seq(0, 1), 0, 0, kind.PARKED), _outcome(_seq(0, 2), 1, 0, kind.DEAD)),
        OutcomeBatch((), (BreakerMove("acme/orders/0/http", breaker),)),
        CheckIn("acme", "pack-1", AT, (_seq(0, 2), _seq(0, 1))),
    ]
    return [
        (Topic.HOOKS, _commit(1, 3, sinks=2)),
        (Topic.HOOKS, _commit(4, 4, **lane)),
        (Topic.HOOKS, _commit(8, 2, tenant="beta", dedupe_key="evt-1", dedupe_ttl_ms=60_000)),
        (Topic.REPLAYS, records.encode(JobStart(_job("job-1", AT)))),
        *((Topic.OUTCOMES, records.encode(outcome)) for outcome in outcomes),
        (Topic.REPLAYS, records.encode(JobPatch("job-1", AT, state=JobState.PAUSED, held=("acme/orders/0/http",)))),
        (Topic.QUARANTINE, records.encode_commit(AT, [(records.encode(one), b"x" * 9) for one in held])),
        (
            Topic.QUARANTINE,
            records.encode(Purge(AT, (PenEntry(held[1].received_at, held[1].id, _held_bytes(held[1])),))),
        ),
        (Topic.HOOKS, _commit(10, 2, tenant="beta", sinks=3, dedupe_key="evt-1", dedupe_ttl_ms=60_000)),
        (Topic.HOOKS, _commit(12, 1, **lane)),
    ]


def page(epoch: int) -> Page:
    return Page("job-1", AT, b"cursor-1", 2, 0, (Revival(_seq(0, 1), 1, 1), Revival(_seq(1, 0), 0, 1)), epoch=epoch)


def _reached(fold: PartitionFold, turn: int) -> bool:
    return fold.turn >= turn


async def _recorded(folder: Path) -> tuple[list[Record], Tables]:
    """By a worker, one record after the other: then the order of the topics among each other is that of their times."""
    (folder / "broker").mkdir()
    server = await asyncio.to_thread(start, folder / "broker")
    try:
        fleet = await asyncio.to_thread(lambda: Fleet(address(server), partitions=1))
        async with worker(fleet, folder / "worker") as running:
            await until_async(lambda: 0 in running.owned.folds, "the partition is owned")
            fold = running.owned.folds[0]
            pages = [(Topic.OUTCOMES, records.encode(page(fold.epoch)))] * 2  # the second moves nothing
            for topic, value in [*script()[:-5], *pages, *script()[-5:]]:
                turn = fold.turn + 1
                await asyncio.to_thread(fleet.send, topic, [(0, value)])
                await until_async(partial(_reached, fold, turn), "it is folded")
            tables = comparable(content(fold.tables))
        log = [
            (topic, record.offset, record.timestamp, record.value)
            for topic in FOLDED_TOPICS
            for record in await asyncio.to_thread(fleet.read, fleet.topic(topic))
        ]
    finally:
        await asyncio.to_thread(server.stop)
    log.sort(key=lambda entry: entry[2])
    return log, tables


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        recorded_to(sys.argv[1], *asyncio.run(_recorded(Path(folder))))


if __name__ == "__main__":
    main()
