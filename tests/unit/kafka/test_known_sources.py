"""A source that is not known here is gone only when the topic was read up to where it ended after the question."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from ankusa.dispatch.ports import SourcesUnavailableError
from ankusa.store.errors import StoreError
from streams.kafka.known_sources import GONE_MS, KnownSources
from tests.kafka.folding import in_loop

SOURCE: Any = object()


class World:
    """Sources by id; `read` lets those who wait for the topic's end go on."""

    def __init__(self) -> None:
        self.at = 0
        self.sources: dict[str, Any] = {}
        self.waiting: list[asyncio.Future[None]] = []
        self.known = KnownSources(self.sources.get, self.caught_up, lambda: self.at)

    async def caught_up(self) -> None:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.waiting.append(future)
        await future

    async def read(self, error: StoreError | None = None) -> None:
        while not self.waiting:
            await asyncio.sleep(0)
        future = self.waiting.pop()
        if error is None:
            future.set_result(None)
        else:
            future.set_exception(error)
        for _ in range(3):
            await asyncio.sleep(0)

    def unknown(self, source_id: str) -> None:
        with pytest.raises(SourcesUnavailableError):
            self.known.resolve(source_id)


@in_loop
async def test_one_that_is_heard_of_meanwhile_is_there() -> None:
    world = World()
    world.unknown("a")
    world.sources["a"] = SOURCE
    await world.read()
    assert world.known.resolve("a") is SOURCE
    await world.known.stop()


@in_loop
async def test_one_that_the_topic_has_not_is_gone_for_a_while() -> None:
    world = World()
    world.unknown("a")
    world.unknown("a")
    await asyncio.sleep(0)
    world.unknown("b")  # asked for when the reading had begun: it needs one of its own
    await world.read()
    assert world.known.resolve("a") is None
    world.unknown("b")
    await world.read()
    assert world.known.resolve("b") is None
    world.at = GONE_MS + 1
    world.unknown("a")  # it may have been set up again
    await world.known.stop()


@in_loop
async def test_while_nobody_says_where_the_topic_ends_nobody_is_gone() -> None:
    world = World()
    world.unknown("a")
    await world.read(StoreError("no broker answers"))
    world.unknown("a")
    await world.read()
    assert world.known.resolve("a") is None
    await world.known.stop()
