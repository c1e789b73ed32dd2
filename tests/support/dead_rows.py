"""A store with dead rows in it, made without a node: thousands in a second."""

from __future__ import annotations

import asyncio
from pathlib import Path

from ankusa.clock import now_ms, uuid7
from ankusa.core.fold import Accepted
from schemas import records
from schemas.records import Envelope, ErrorClass, Outcome, OutcomeBatch, OutcomeKind
from streams.local.log import LocalLog

COMMIT = 256


def bury(data_dir: Path, source_id: str, count: int, *, body: bytes = b"{}") -> list[str]:
    """Store `count` hooks of `source_id`, each with one dead row of an `http` sink; their ids."""
    return asyncio.run(_bury(data_dir, source_id, count, body))


async def _bury(data_dir: Path, source_id: str, count: int, body: bytes) -> list[str]:
    data_dir.mkdir(parents=True, exist_ok=True)
    log = LocalLog(data_dir / "store", now_ms)
    ids = [uuid7(now_ms()) for _ in range(count)]
    try:
        for start in range(0, count, COMMIT):
            hooks = []
            for hook_id in ids[start : start + COMMIT]:
                envelope = Envelope(hook_id, source_id, "default", now_ms(), ("http",), (), "application/json", hook_id)
                hooks.append((envelope, records.encode(envelope), body))
            answers = await log.commit(hooks, [])
            deaths = []
            for answer in answers:
                assert isinstance(answer, Accepted)
                row = log.tables.row(answer.seq, 0)
                assert row is not None
                deaths.append(_death(answer.seq, row.generation, log.now()))
            log.publish(OutcomeBatch(tuple(deaths)))
    finally:
        log.close()
    return ids


def _death(seq: int, generation: int, at: int) -> Outcome:
    kind, reason = OutcomeKind.DEAD, "HTTP 410"
    return Outcome(seq, 0, generation, kind, at, at, 1, 0, reason, ErrorClass.PERMANENT)
