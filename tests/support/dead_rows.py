"""A store with dead rows in it, made without a node: thousands in a second.

Alone: `python -m tests.support.dead_rows DATA_DIR SOURCE_ID COUNT` leaves it as a kill does: all is in its
write-ahead log.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from ankusa.clock import now_ms, uuid7
from ankusa.core.fold import Accepted
from schemas import records
from schemas.records import Envelope, ErrorClass, Outcome, OutcomeBatch, OutcomeKind
from streams.local.log import LocalLog

COMMIT = 256
DIED = 9


def bury(data_dir: Path, source_id: str, count: int, *, body: bytes = b"{}") -> list[str]:
    """Store `count` hooks of `source_id`, each with one dead row of an `http` sink; their ids."""
    return asyncio.run(_bury(data_dir, source_id, count, body, LocalLog.close))


def bury_and_die(data_dir: Path, source_id: str, count: int) -> None:
    """The same in another process, which ends without closing the store."""
    command = [sys.executable, "-m", "tests.support.dead_rows", str(data_dir), source_id, str(count)]
    assert subprocess.run(command, check=False).returncode == DIED


async def _bury(data_dir: Path, source_id: str, count: int, body: bytes, end: Callable[[LocalLog], None]) -> list[str]:
    data_dir.mkdir(parents=True, exist_ok=True)
    log = LocalLog(data_dir / "store", now_ms)
    ids = [uuid7(now_ms()) for _ in range(count)]
    try:
        for start in range(0, count, COMMIT):
            hooks = []
            for hook_id in ids[start : start + COMMIT]:
                envelope = Envelope(hook_id, source_id, "default", now_ms(), ("http",), (), "application/json", hook_id)
                hooks.append((envelope, records.encode(envelope), body))
            deaths = []
            for answer in await log.commit(hooks, []):
                assert isinstance(answer, Accepted)
                row = log.tables.row(answer.seq, 0)
                assert row is not None
                deaths.append(_death(answer.seq, row.generation, log.now()))
            log.publish(OutcomeBatch(tuple(deaths)))
    finally:
        end(log)
    return ids


def _death(seq: int, generation: int, at: int) -> Outcome:
    kind, reason = OutcomeKind.DEAD, "HTTP 410"
    return Outcome(seq, 0, generation, kind, at, at, 1, 0, reason, ErrorClass.PERMANENT)


def _die(log: LocalLog) -> None:
    log.tables.database.flush()
    os._exit(DIED)


def main() -> None:
    data_dir, source_id, count = sys.argv[1:]
    asyncio.run(_bury(Path(data_dir), source_id, int(count), b"x" * 1000, _die))


if __name__ == "__main__":
    main()
