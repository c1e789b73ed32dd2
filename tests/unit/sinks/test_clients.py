"""Endpoints in time: when a host is looked up, which address is used, what a refusal and a failed connect change."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from ankusa.sinks.clients import IDLE_CLIENT_S, RESOLVE_AGE_S, Endpoint, HttpClients
from ankusa.sinks.egress import Destination, Egress, Refusal, Unresolved

GOOD = ["8.8.8.8", "1.1.1.1"]


class Lab:
    """A clock and a resolver in the test's hand. An answer is addresses, or an error to raise."""

    def __init__(self) -> None:
        self.now_s = 1000.0
        self.answer: list[str] | OSError = list(GOOD)
        self.lookups = 0
        self.gate: asyncio.Event | None = None
        self.egress = Egress(resolver=self.resolve)
        self.clients = HttpClients(self.egress, now=lambda: self.now_s)

    async def resolve(self, host: str, port: int) -> list[str]:
        self.lookups += 1
        if self.gate is not None:
            await self.gate.wait()
        if isinstance(self.answer, OSError):
            raise self.answer
        return self.answer

    def endpoint(self, url: str = "http://sink.test/") -> Endpoint:
        destination = self.egress.judge_url(url)
        assert isinstance(destination, Destination)
        return self.clients.endpoint(destination)

    def pass_time(self, seconds: float) -> None:
        self.now_s += seconds


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not condition():
            await asyncio.sleep(0.001)


def run(test: Callable[[Lab], Coroutine[Any, Any, None]]) -> None:
    async def main() -> None:
        lab = Lab()
        await test(lab)
        lab.clients.close()

    asyncio.run(main())


def test_nothing_is_looked_up_before_first_use_and_once_for_all_who_wait() -> None:
    async def test(lab: Lab) -> None:
        endpoint = lab.endpoint()
        assert lab.lookups == 0
        assert endpoint.ready() is None
        found = await asyncio.gather(*[endpoint.client() for _ in range(32)])
        assert lab.lookups == 1
        assert len({id(client) for client in found}) == 1
        assert endpoint.ready() is found[0]

    run(test)


def test_one_endpoint_per_scheme_host_and_port() -> None:
    async def test(lab: Lab) -> None:
        assert lab.endpoint("http://sink.test/a?b") is lab.endpoint("http://SINK.test:80/c")
        others = [lab.endpoint(f"{url}/") for url in ("https://sink.test", "http://sink.test:81", "http://other.test")]
        assert len({id(endpoint) for endpoint in [lab.endpoint(), *others]}) == 4

    run(test)


def test_an_old_answer_is_used_while_the_new_one_is_fetched_and_an_unchanged_one_keeps_the_client() -> None:
    async def test(lab: Lab) -> None:
        endpoint = lab.endpoint()
        client = await endpoint.client()
        lab.pass_time(RESOLVE_AGE_S - 1)
        assert endpoint.ready() is client
        assert lab.lookups == 1
        lab.pass_time(2)
        lab.answer = list(reversed(GOOD))  # as round-robin DNS does
        assert endpoint.ready() is client
        await until(lambda: lab.lookups == 2)
        for _ in range(10):
            await asyncio.sleep(0)
            assert endpoint.ready() is client
        assert lab.lookups == 2

    run(test)


def test_a_moved_host_gets_a_new_client() -> None:
    async def test(lab: Lab) -> None:
        endpoint = lab.endpoint()
        client = await endpoint.client()
        lab.answer = ["9.9.9.9"]
        lab.pass_time(RESOLVE_AGE_S + 1)
        assert endpoint.ready() is client
        await until(lambda: endpoint.ready() is not client)
        assert endpoint.ready() is not None

    run(test)


def test_a_rebound_host_is_refused() -> None:
    async def test(lab: Lab) -> None:
        endpoint = lab.endpoint()
        await endpoint.client()
        lab.answer = ["169.254.169.254"]
        lab.pass_time(RESOLVE_AGE_S + 1)
        endpoint.ready()
        await until(lambda: endpoint.ready() is None)
        assert isinstance(await endpoint.client(), Refusal)

    run(test)


def test_a_refusal_and_an_unknown_name_are_remembered_for_a_moment_only() -> None:
    async def test(lab: Lab) -> None:
        endpoint = lab.endpoint()
        lab.answer = ["10.0.0.1"]
        for _ in range(50):
            assert isinstance(await endpoint.client(), Refusal)
        assert lab.lookups == 1
        lab.answer = OSError(-2, "Name or service not known")
        lab.pass_time(6)
        for _ in range(50):
            assert isinstance(await endpoint.client(), Unresolved)
        assert lab.lookups == 2
        lab.answer = list(GOOD)
        lab.pass_time(2)
        assert await endpoint.client() is endpoint.ready()

    run(test)


def test_an_absent_resolver_does_not_take_a_known_address_away() -> None:
    async def test(lab: Lab) -> None:
        endpoint = lab.endpoint()
        client = await endpoint.client()
        lab.answer = OSError(-3, "Temporary failure in name resolution")
        lab.pass_time(RESOLVE_AGE_S + 1)
        endpoint.ready()
        await until(lambda: lab.lookups == 2)
        assert await endpoint.client() is client

    run(test)


def test_a_failed_connect_moves_to_the_next_address_once_for_all_and_comes_round() -> None:
    async def test(lab: Lab) -> None:
        endpoint = lab.endpoint()
        first = await endpoint.client()
        moved = await asyncio.gather(*[endpoint.after_failed_connect(first) for _ in range(32)])
        assert len({id(client) for client in moved}) == 1
        second = moved[0]
        assert second is not None and second is not first
        assert await endpoint.after_failed_connect(first) is second
        third = await endpoint.after_failed_connect(second)
        assert third is not None and third is not second
        assert lab.lookups == 1
        lab.pass_time(2)
        endpoint.ready()
        await until(lambda: lab.lookups == 2)

    run(test)


def test_a_failed_connect_with_one_address_has_it_looked_up_again_soon() -> None:
    async def test(lab: Lab) -> None:
        lab.answer = ["8.8.8.8"]
        endpoint = lab.endpoint()
        client = await endpoint.client()
        assert await endpoint.after_failed_connect(client) is None
        assert endpoint.ready() is client
        assert lab.lookups == 1
        lab.pass_time(2)
        endpoint.ready()
        await until(lambda: lab.lookups == 2)
        assert endpoint.ready() is client

    run(test)


def test_a_literal_needs_no_lookup() -> None:
    async def test(lab: Lab) -> None:
        endpoint = lab.endpoint("http://8.8.4.4/")
        client = await endpoint.client()
        lab.pass_time(RESOLVE_AGE_S + 1)
        assert endpoint.ready() is client
        await asyncio.sleep(0)
        assert endpoint.ready() is client
        assert lab.lookups == 0

    run(test)


def test_a_waiter_that_is_cancelled_leaves_the_lookup_to_the_others() -> None:
    async def test(lab: Lab) -> None:
        lab.gate = asyncio.Event()
        endpoint = lab.endpoint()
        gone, stays = asyncio.create_task(endpoint.client()), asyncio.create_task(endpoint.client())
        await until(lambda: lab.lookups == 1)
        gone.cancel()
        with pytest.raises(asyncio.CancelledError):
            await gone
        lab.gate.set()
        assert await stays is endpoint.ready()
        assert lab.lookups == 1

    run(test)


def test_a_client_goes_with_its_last_user() -> None:
    async def test(lab: Lab) -> None:
        endpoint = lab.endpoint()
        assert lab.endpoint() is endpoint
        client = await endpoint.client()
        lab.clients.release(endpoint)
        assert endpoint.ready() is client
        lab.clients.release(endpoint)
        assert endpoint.ready() is None
        assert lab.endpoint() is not endpoint

    run(test)


def test_an_idle_client_goes_when_another_is_built_and_comes_back_on_use() -> None:
    async def test(lab: Lab) -> None:
        idle, busy = lab.endpoint("http://idle.test/"), lab.endpoint("http://busy.test/")
        await idle.client()
        kept = await busy.client()
        lab.pass_time(IDLE_CLIENT_S)
        busy.ready()
        await until(lambda: lab.lookups == 3)
        lab.pass_time(RESOLVE_AGE_S + 1)
        await lab.endpoint("http://new.test/").client()
        assert idle.ready() is None
        assert busy.ready() is kept
        assert await idle.client() is idle.ready()

    run(test)
