"""Kills of one source at the same time, and a stop amid one: what the contract suite cannot ask of any host."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.contract.embedded import EmbeddedHost, embedded
from tests.contract.host import hooks
from tests.contract.sinks import TRANSIENT, ScriptedSink


@pytest.fixture
def host(tmp_path: Path) -> Iterator[EmbeddedHost]:
    with embedded(tmp_path) as made:
        made.source("orders", ScriptedSink(TRANSIENT))
        made.commit(hooks(1_000))
        made.settle()
        yield made


def test_callers_at_the_same_time_share_a_kill_and_each_hears_its_whole_count(host: EmbeddedHost) -> None:
    async def kill_thrice() -> list[int | None]:
        return await asyncio.gather(*(host.dispatcher.dead_letter_source("orders") for _ in range(3)))

    counts = host.loop.run(kill_thrice())
    assert counts == [1_000] * 3
    assert host.counts() == (0, 0, 1_000) == host.scanned_counts()
    assert len(host.attempts("hook-0500")) == 2  # its failure, and its death
    assert host.dispatcher._kills._by_source == {}


def test_a_stop_amid_a_kill_makes_it_unavailable_and_loses_nothing(host: EmbeddedHost) -> None:
    async def kill_and_stop() -> int | None:
        killing = asyncio.ensure_future(host.dispatcher.dead_letter_source("orders"))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        await host.dispatcher.stop(0)
        return await killing

    assert host.loop.run(kill_and_stop()) is None
    live, _, dead = host.scanned_counts()
    assert 0 < dead < 1_000
    assert live + dead == 1_000
    assert host.loop.run(host.dispatcher.dead_letter_source("orders")) is None
