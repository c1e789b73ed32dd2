"""What the tests of the queue sinks share: waiting in a loop, and results taken apart."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

from ankusa.sinks.contract import Delivery, Failed, Ok, SinkResult
from tests.unit.sinks.deliveries import delivery

PATIENT_MS = 60_000
"""A sink's timeout where a test does not want it to run out: by default it is what a busy machine may take."""


def failed(result: SinkResult, error_class: str) -> str:
    """The reason of a failure of that class."""
    assert isinstance(result, Failed), result
    assert result.error_class == error_class, result
    return result.reason


def ok(result: SinkResult) -> str:
    assert isinstance(result, Ok), result
    return result.detail


def numbered(count: int, **changes: Any) -> list[Delivery]:
    """Deliveries with ids that tell them apart."""
    return [delivery(id=f"01890a5d-ac96-774b-bcce-{number:012d}", **changes) for number in range(count)]


async def turns() -> None:
    """Let everything that can run now run: for what must not have happened then."""
    for _ in range(100):
        await asyncio.sleep(0)


async def until(condition: Callable[[], bool], timeout_s: float = 30) -> None:
    """Poll until it holds; an AssertionError past the deadline."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come true in time"
        await asyncio.sleep(0.005)


async def until_ok(deliver: Callable[[], Awaitable[SinkResult]], timeout_s: float = 60) -> SinkResult:
    """Deliver until it is ok, as the dispatcher's retries would; an AssertionError past the deadline."""
    deadline = time.monotonic() + timeout_s
    while not isinstance(result := await deliver(), Ok):
        assert time.monotonic() < deadline, f"still failing: {result}"
        await asyncio.sleep(0.02)
    return result
