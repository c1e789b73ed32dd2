"""Sinks that a test tells what to do."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from ankusa.sinks.contract import Delivery, Failed, Ok

OK = Ok("200")
TRANSIENT = Failed("transient", "500")
PERMANENT = Failed("permanent", "410")


async def hang(_: Delivery) -> Any:
    """Never answers, and ends when it is cancelled."""
    await asyncio.Event().wait()


async def cling(_: Delivery) -> Any:
    """Never answers, and does not end when it is cancelled either."""
    while True:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            continue


def slow(ms: int) -> Callable[[Delivery], Awaitable[Any]]:
    """Answers ok after `ms`."""

    async def act(_: Delivery) -> Any:
        await asyncio.sleep(ms / 1000)
        return OK

    return act


class ScriptedSink:
    """Answers by its script: a result, an exception to raise, or a function to await; the last step goes on for ever.

    One script serves all hooks, step by step. `got` holds what it was handed, in order.
    """

    def __init__(
        self, *script: Any, type: str = "http", batching: bool = False, inline_max_bytes: int | None = None
    ) -> None:
        self.type = type
        self.batching = batching
        self.inline_max_bytes = inline_max_bytes
        self.script: Sequence[Any] = script or (OK,)
        self.got: list[Delivery] = []
        self.running = 0
        self.most_running = 0
        self._step = 0

    @property
    def ids(self) -> list[str]:
        return [delivery.id for delivery in self.got]

    def attempts_of(self, hook_id: str) -> list[int]:
        return [delivery.attempt for delivery in self.got if delivery.id == hook_id]

    def times(self) -> list[int]:
        """When attempts started, unix ms."""
        return [delivery.at for delivery in self.got]

    async def deliver(self, delivery: Delivery) -> Any:
        self.got.append(delivery)
        step = self.script[min(self._step, len(self.script) - 1)]
        self._step += 1
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        try:
            if isinstance(step, BaseException):
                raise step
            return await step(delivery) if callable(step) else step
        finally:
            self.running -= 1

    async def close(self) -> None:
        """Nothing to release."""


class Gauge:
    """How many attempts run at once by tenant, and the most there ever were. Sinks report to it."""

    def __init__(self) -> None:
        self.running: dict[str, int] = defaultdict(int)
        self.most: dict[str, int] = defaultdict(int)

    def watched(self, inner: Callable[[Delivery], Awaitable[Any]]) -> Callable[[Delivery], Awaitable[Any]]:
        async def act(delivery: Delivery) -> Any:
            tenant = delivery.tenant_id
            self.running[tenant] += 1
            self.most[tenant] = max(self.most[tenant], self.running[tenant])
            try:
                return await inner(delivery)
            finally:
                self.running[tenant] -= 1

        return act
