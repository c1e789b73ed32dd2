"""Connections: opened once for all who come, closed when idle, dropped or given back by the last user."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from ankusa.sinks.connections import Connection, Destinations, Share
from tests.support.queue_sinks import turns, until


class Peer:
    """What connections connect to."""

    def __init__(self) -> None:
        self.opened: list[int] = []
        self.closed: list[int] = []
        self.broken: set[int] = set()
        self.gate = asyncio.Event()
        self.gate.set()
        self.error: Exception | None = None

    async def open(self) -> int:
        self.opened.append(len(self.opened))
        number = self.opened[-1]
        await self.gate.wait()
        if self.error is not None:
            raise self.error
        return number

    async def close(self, number: int) -> None:
        self.closed.append(number)

    def connection(self, idle_timeout_ms: int = 0, **more: Any) -> Connection[int]:
        return Connection(self.open, self.close, lambda number: number not in self.broken, idle_timeout_ms, **more)


def run(main: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(asyncio.wait_for(main(), 60))


async def used(connection: Connection[int]) -> int:
    async with connection.use() as number:
        return number


def test_it_opens_at_the_first_use_once_for_all() -> None:
    async def main() -> None:
        peer = Peer()
        connection = peer.connection()
        assert peer.opened == []
        assert await asyncio.gather(*(used(connection) for _ in range(50))) == [0] * 50
        assert await used(connection) == 0
        await connection.close()
        await connection.close()
        assert (peer.opened, peer.closed) == ([0], [0])

    run(main)


def test_who_gives_up_leaves_the_others_their_connection() -> None:
    async def main() -> None:
        peer = Peer()
        peer.gate.clear()
        connection = peer.connection()
        first, second = (asyncio.create_task(used(connection)) for _ in range(2))
        await until(lambda: peer.opened == [0])
        first.cancel()
        await asyncio.wait([first])
        peer.gate.set()
        assert await second == 0 and first.cancelled()
        assert await used(connection) == 0
        await connection.close()

    run(main)


def test_all_who_wait_hear_why_it_cannot_open_and_the_next_one_tries_again() -> None:
    async def main() -> None:
        peer = Peer()
        peer.error = OSError("refused")
        connection = peer.connection()
        results = await asyncio.gather(*(used(connection) for _ in range(5)), return_exceptions=True)
        assert [str(result) for result in results] == ["refused"] * 5 and peer.opened == [0]
        peer.error = None
        assert await used(connection) == 1
        await connection.close()

    run(main)


@pytest.mark.parametrize("how", ["found broken", "dropped"])
def test_a_broken_one_is_replaced_and_closed(how: str) -> None:
    async def main() -> None:
        peer = Peer()
        connection = peer.connection()
        number = await used(connection)
        if how == "dropped":
            connection.drop(number)
            connection.drop(number)
        else:
            peer.broken.add(number)
        assert await used(connection) == 1
        await until(lambda: peer.closed == [0])
        connection.drop(0)  # whoever still holds the old one cannot part the others from the new one
        assert await used(connection) == 1
        await connection.close()

    run(main)


def test_an_idle_one_closes_but_not_in_use_and_not_before_its_time() -> None:
    async def main() -> None:
        now = [0.0]
        peer = Peer()
        connection = peer.connection(60_000, now=lambda: now[0])
        async with connection.use():
            now[0] = 100.0
            connection._check_idle()  # as its timer does
            await turns()
            assert peer.closed == []
        for now[0] in (159.9, 160.0):
            assert peer.closed == []
            connection._check_idle()
            await turns()
        assert peer.closed == [0]
        assert await used(connection) == 1
        await connection.close()

    run(main)


def test_the_timer_closes_an_idle_one() -> None:
    async def main() -> None:
        peer = Peer()
        connection = peer.connection(10)
        await used(connection)
        await until(lambda: peer.closed == [0])
        assert await used(connection) == 1
        await connection.close()

    run(main)


def test_one_that_nobody_waited_for_any_more_closes_when_idle_too() -> None:
    async def main() -> None:
        peer = Peer()
        peer.gate.clear()
        connection = peer.connection(10)
        task = asyncio.create_task(used(connection))
        await until(lambda: peer.opened == [0])
        task.cancel()
        await asyncio.wait([task])
        peer.gate.set()
        await until(lambda: peer.closed == [0])
        await connection.close()

    run(main)


def test_idle_timeout_0_keeps_it() -> None:
    async def main() -> None:
        peer = Peer()
        connection = peer.connection(0)
        await used(connection)
        assert peer.closed == [] and connection._timer is None
        await connection.close()

    run(main)


def test_closing_amid_an_opening_tells_who_waits() -> None:
    async def main() -> None:
        peer = Peer()
        peer.gate.clear()
        connection = peer.connection()
        task = asyncio.create_task(used(connection))
        await until(lambda: peer.opened == [0])
        await connection.close()
        with pytest.raises(ConnectionError, match="closed while"):
            await task

    run(main)


def test_a_close_that_fails_or_hangs_harms_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ankusa.sinks.connections.CLOSE_S", 0.02)

    async def main() -> None:
        async def hang(_: int) -> None:
            await asyncio.Event().wait()

        async def fail(_: int) -> None:
            raise RuntimeError

        for closing in (hang, fail):
            peer = Peer()
            connection: Connection[int] = Connection(peer.open, closing, lambda _: True, 0)
            await used(connection)
            await connection.close()

    run(main)


class Shared:
    def __init__(self) -> None:
        self.closes = 0

    async def close(self) -> None:
        self.closes += 1


def test_a_destination_is_shared_by_key_and_closed_by_its_last_user() -> None:
    async def main() -> None:
        destinations = Destinations()
        one, two = (Share(destinations, ("redis", "url"), Shared) for _ in range(2))
        other = Share(destinations, ("redis", "another"), Shared)
        shared = one.destination
        assert shared is not None and shared is two.destination and shared is not other.destination
        assert destinations.count == 2
        await one.end()
        await one.end()  # once is all that counts
        assert one.destination is None and shared.closes == 0
        await two.end()
        assert shared.closes == 1 and destinations.count == 1
        again = Share(destinations, ("redis", "url"), Shared)
        assert again.destination is not shared
        await again.end()
        await other.end()

    run(main)


def test_the_concurrency_follows_the_config() -> None:
    destinations = Destinations(8)
    destinations.reconfigure(None)
    assert destinations.sink_concurrency is None
