"""Changes on their way: tried again while others come first, and carried to their end although nobody waits."""

from __future__ import annotations

import asyncio
import logging

import pytest

from ankusa import changing
from ankusa.changing import TRIES, Changing, ContendedError
from ankusa.store.errors import StoreError

LOG = logging.getLogger("ankusa.test")


class Contended:
    """A change that others come before, so many times."""

    def __init__(self, times: int) -> None:
        self.left = times
        self.judged = 0

    async def __call__(self) -> str:
        self.judged += 1
        if self.left:
            self.left -= 1
            raise ContendedError("another worker changes sources or routes at this moment")
        return "stored"


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(changing, "AGAIN_MS", 1)


def test_a_change_is_judged_anew_while_others_come_first() -> None:
    work = Contended(TRIES - 1)
    assert asyncio.run(Changing("route", LOG).tried(work)) == "stored"
    assert work.judged == TRIES


def test_one_that_others_come_before_every_time_is_refused() -> None:
    work = Contended(TRIES)
    with pytest.raises(ContendedError):
        asyncio.run(Changing("route", LOG).tried(work))
    assert work.judged == TRIES


def test_one_that_the_log_refuses_is_not_tried_again() -> None:
    judged: list[int] = []

    async def refused() -> None:
        judged.append(1)
        raise StoreError("no broker")

    with pytest.raises(StoreError, match="no broker"):
        asyncio.run(Changing("route", LOG).carried(refused))
    assert judged == [1]


def test_a_change_goes_on_without_its_caller_and_its_failure_is_told(caplog: pytest.LogCaptureFixture) -> None:
    ended: list[str] = []

    async def main() -> None:
        changes, begun, goes_on = Changing("route", LOG), asyncio.Event(), asyncio.Event()

        async def work(name: str) -> None:
            begun.set()
            await goes_on.wait()
            ended.append(name)
            if name == "second":
                raise StoreError("no broker")

        callers = [asyncio.create_task(changes.carried(lambda name=name: work(name))) for name in ("first", "second")]  # type: ignore[misc]
        await begun.wait()
        for caller in callers:
            caller.cancel()
        await asyncio.gather(*callers, return_exceptions=True)
        assert ended == []
        goes_on.set()
        async with asyncio.timeout(30):
            while len(ended) < 2 or not caplog.records:
                await asyncio.sleep(0)

    with caplog.at_level(logging.WARNING):
        asyncio.run(main())
    assert sorted(ended) == ["first", "second"]
    assert [record.getMessage() for record in caplog.records] == ["event=route_change_failed reason=no broker"]
