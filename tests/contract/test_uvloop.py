"""The dispatcher under the event loop it runs on in production, in real time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest
import uvloop

from ankusa.clock import now_ms
from ankusa.dispatch import dispatcher as dispatching
from ankusa.dispatch.dispatcher import Dispatcher
from schemas import records
from schemas.config import Dispatch, Retry
from schemas.records import Envelope
from streams.local.dispatch_host import LocalDispatchHost
from streams.local.log import LocalLog
from tests.contract.sinks import TRANSIENT, ScriptedSink
from tests.contract.sources import FakeSources

DEADLINE_S = 20.0
LONG_SLEEP_MS = 600_000
"""In place of the dispatcher's longest sleep of 5 s: what no commit has it do is not done within the deadline."""


def entry(hook_id: str, source_id: str) -> tuple[Envelope, bytes, bytes]:
    envelope = Envelope(hook_id, source_id, "acme", now_ms(), ("http",), (), None, hook_id)
    return envelope, records.encode(envelope), b"{}"


async def until(done: Callable[[], object]) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while not done():
            await asyncio.sleep(0.005)


def test_a_commit_wakes_it_out_of_a_sleep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """uvloop's timers are no `asyncio.TimerHandle`, and must be told from a turn that is about to run all the same."""
    monkeypatch.setattr(dispatching, "MAX_SLEEP_MS", LONG_SLEEP_MS)

    async def body() -> None:
        log = LocalLog(tmp_path / "store", now_ms)
        sources, failing, well = FakeSources(), ScriptedSink(TRANSIENT), ScriptedSink()
        dispatcher = Dispatcher(LocalDispatchHost(log), sources, Dispatch(), log.now, lambda: 1.0)
        log.on_rows = dispatcher.wake
        retry = Retry(base_ms=LONG_SLEEP_MS, max_ms=LONG_SLEEP_MS, jitter=False)
        sources.put("bad", failing, retry=retry)
        sources.put("orders", well, retry=retry)
        await log.commit([entry("a", "bad")], [])
        await until(lambda: dispatcher.settled)
        await asyncio.sleep(0)  # the turn that finds nothing more and goes to sleep
        await log.commit([entry("b", "orders")], [])
        await until(lambda: well.ids)
        await dispatcher.stop(0)
        log.close()

    uvloop.run(body())
