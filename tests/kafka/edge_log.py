"""Edge logs for tests: one over a real producer, hooks to append, and the hooks that a topic holds."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import NamedTuple

from ankusa.clock import now_ms, uuid7
from schemas.append import Submission
from schemas.config import Config
from schemas.records import Envelope, Held, decode_commit, decode_envelope, decode_held
from streams.kafka.edge_log import KafkaEdgeLog
from streams.kafka.producer import EdgeProducer
from tests.kafka import cluster

FAR_MS = 3_600_000

_numbers = itertools.count()


@asynccontextmanager
async def running(config: Config, *, agreed: bool = True, first: int = 0) -> AsyncIterator[KafkaEdgeLog]:
    """An edge log that takes hooks."""
    edge_log = KafkaEdgeLog(config, EdgeProducer(config), lambda _: agreed, now_ms, first)
    try:
        await edge_log.open()
        yield edge_log
    finally:
        await edge_log.close()


def hook(
    body: bytes = b"{}", *, dedupe: str | None = None, ordering: tuple[str | None, ...] = (), tenant: str = "default"
) -> Submission:
    at = now_ms()
    hook_id = uuid7(at)
    ttl_ms = 0 if dedupe is None else 60_000
    envelope = Envelope(
        hook_id, "orders", tenant, at, ("log",), (), None, hook_id, dedupe, ttl_ms, ordering_keys=ordering
    )
    return Submission(envelope, body)


def held(body: bytes = b"{}", source: str = "orders") -> Submission:
    at = now_ms()
    return Submission(Held(uuid7(at), source, "default", at, "POST", "/", (), "bad", len(body)), body)


def deadline() -> int:
    return now_ms() + FAR_MS


class Stored(NamedTuple):
    """A hook as a topic holds it."""

    partition: int
    offset: int
    index: int
    entry: Envelope | Held
    body: bytes


def stored_hooks(broker: str, topic: str) -> list[Stored]:
    """Every hook of `hooks`, read by the independent client."""
    return [
        Stored(record.partition, record.offset, index, decode_envelope(entry), body)
        for record in cluster.read_all(broker, topic)
        for index, (entry, body) in enumerate(decode_commit(record.value)[1])
    ]


def stored_holds(broker: str, topic: str) -> list[Stored]:
    """Every held hook of `quarantine`."""
    return [
        Stored(record.partition, record.offset, index, decode_held(entry), body)
        for record in cluster.read_all(broker, topic)
        for index, (entry, body) in enumerate(decode_commit(record.value)[1])
    ]


def ids(hooks: Sequence[Stored]) -> list[str]:
    return [stored.entry.id for stored in hooks]
