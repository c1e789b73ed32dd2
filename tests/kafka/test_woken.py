"""A worker that comes back to its group after another had its partitions, on a real broker."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

from schemas.records import Topic
from streams.kafka.membership import SESSION_S
from streams.kafka.worker import Worker
from tests.kafka.folding import Fleet, WorkerProcess, in_loop, until_async, worker
from tests.unit.kafka.records import hooks

# The event loop of Faust's consumer thread is left to the collector, with its sockets.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning", "ignore::ResourceWarning")

WAIT_S = 60.0


def _unheard(running: Worker) -> threading.Event:
    """Keep what the worker sends to its group until the event is set, and have it read nothing more, as in a process
    that stands still."""
    client, goes_on = running.app.consumer._thread._consumer, threading.Event()
    client.pause(*client.assignment())
    coordinator = client._coordinator
    send = coordinator._send_req

    async def kept(request: Any) -> Any:
        while not goes_on.is_set():
            await asyncio.sleep(0.02)
        return await send(request)

    coordinator._send_req = kept
    return goes_on


@pytest.mark.soak
@pytest.mark.fault
@in_loop
async def test_tables_of_before_a_silence_are_certain_no_more(broker: str, tmp_path: Path) -> None:
    """Another owner has delivered from them meanwhile, and nothing that was folded since says so here."""
    fleet = Fleet(broker, partitions=1)
    fleet.send(Topic.HOOKS, [(0, hooks("a"))])
    async with worker(fleet, tmp_path / "stood") as running:
        owned = running.owned
        await until_async(lambda: 0 in owned.folds and not owned.doubtful(), "the partition is owned", WAIT_S)
        stale = owned.folds[0]
        goes_on = _unheard(running)
        await until_async(owned.doubtful, "the group is silent", WAIT_S)
        other = WorkerProcess(fleet, tmp_path / "other")
        try:
            await until_async(lambda: bool(other.said("partition_owned")), "another owns it", SESSION_S + WAIT_S)
        finally:
            assert await asyncio.to_thread(other.stop) == 0
        goes_on.set()
        certain = 0
        while owned.doubtful() or owned.folds.get(0) in (None, stale):
            certain += not owned.doubtful() and owned.folds.get(0) is stale
            await asyncio.sleep(0.001)
        assert certain == 0
