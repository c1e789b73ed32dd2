"""The batcher: when a request starts, what is in it, and who gets which answer."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any

import pytest

from ankusa.sinks.batch_queue import QueueLimits
from ankusa.sinks.batcher import Batcher, Limits, Refused
from ankusa.sinks.contract import Failed, Ok, SinkResult
from tests.support.queue_sinks import failed, ok, turns, until

PERMANENT = Failed("permanent", "bad")


class Far:
    """The far end: keeps requests, answers each when it is let go, by `answer`."""

    def __init__(self, answer: Callable[[str], SinkResult] = Ok) -> None:
        self.requests: list[list[str]] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.running = self.most = 0
        self.answer = answer

    async def send(self, payloads: Sequence[str]) -> Sequence[SinkResult] | Refused:
        self.requests.append(list(payloads))
        self.running += 1
        self.most = max(self.most, self.running)
        try:
            await self.gate.wait()
        finally:
            self.running -= 1
        return [self.answer(payload) for payload in payloads]


def batcher(
    send: Callable[[Sequence[str]], Awaitable[Sequence[SinkResult] | Refused]],
    *,
    entries: int = 3,
    linger_ms: int = 5,
    concurrency: int | None = 2,
    queue: QueueLimits | None = None,
) -> Batcher[str]:
    return Batcher(send, Limits(entries, 1_000, linger_ms), lambda: concurrency, queue or QueueLimits(1_000, 100_000))


def submitting(target: Batcher[str], payloads: str, tenant: str = "t") -> list["asyncio.Task[SinkResult]"]:
    return [asyncio.create_task(target.submit(tenant, 1, payload)) for payload in payloads]


def run(main: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(asyncio.wait_for(main(), 60))


def test_full_requests_start_at_once_and_the_rest_when_it_has_lingered() -> None:
    async def main() -> None:
        far = Far()
        target = batcher(far.send, concurrency=None)
        results = await asyncio.gather(*submitting(target, "abcdefgh"))
        assert [ok(result) for result in results] == list("abcdefgh")
        assert far.requests == [list("abc"), list("def"), list("gh")]
        assert (target.requests, target.waiting, target.in_flight) == (3, 0, 0)

    run(main)


def test_a_request_is_full_by_bytes_too() -> None:
    async def main() -> None:
        far = Far()
        target = batcher(far.send, entries=100, linger_ms=60_000)
        tasks = [asyncio.create_task(target.submit("t", 400, name)) for name in "abc"]
        await until(lambda: far.requests == [["a", "b"]])
        for task in tasks[:2]:
            ok(await task)
        assert target.waiting == 1  # it lingers
        await target.close()
        assert "closed" in failed(await tasks[2], "transient")

    run(main)


def test_as_many_requests_in_flight_as_asked_for_and_meanwhile_entries_gather() -> None:
    async def main() -> None:
        allowed, requests, gates = [1], [], [asyncio.Event(), asyncio.Event()]

        async def send(payloads: Sequence[str]) -> Sequence[SinkResult]:
            requests.append("".join(payloads))
            await gates[min(len(requests), 2) - 1].wait()
            return [Ok(payload) for payload in payloads]

        target: Batcher[str] = Batcher(send, Limits(3, 1_000, 0), lambda: allowed[0])
        first = submitting(target, "a")
        await until(lambda: requests == ["a"])
        rest = submitting(target, "bcdefghij")
        await turns()
        assert requests == ["a"] and target.waiting == 9
        allowed[0] = 2  # as a reload would
        gates[0].set()
        await until(lambda: requests == ["a", "bcd", "efg"])
        await turns()
        assert target.in_flight == 2 and target.waiting == 3
        gates[1].set()
        assert [ok(result) for result in await asyncio.gather(*first, *rest)] == list("abcdefghij")
        assert requests == ["a", "bcd", "efg", "hij"]

    run(main)


def test_each_gets_its_own_result() -> None:
    async def main() -> None:
        far = Far(lambda payload: PERMANENT if payload == "b" else Ok(payload))
        results = await asyncio.gather(*submitting(batcher(far.send), "abc"))
        assert results == [Ok("a"), PERMANENT, Ok("c")]

    run(main)


def test_tenants_share_a_request_in_turns() -> None:
    async def main() -> None:
        far = Far()
        target = batcher(far.send, entries=4, concurrency=1)
        far.gate.clear()
        tasks = submitting(target, "0123", "x")
        await until(lambda: len(far.requests) == 1)
        tasks += [*submitting(target, "abcdef", "a"), *submitting(target, "BC", "b")]
        await asyncio.sleep(0)
        far.gate.set()
        await asyncio.gather(*tasks)
        assert far.requests[1:] == [["a", "B", "b", "C"], ["c", "d", "e", "f"]]

    run(main)


def test_a_cancelled_entry_that_waits_is_never_sent() -> None:
    async def main() -> None:
        far = Far()
        target = batcher(far.send, concurrency=1)
        far.gate.clear()
        first = submitting(target, "abc")
        await until(lambda: len(far.requests) == 1)
        tasks = submitting(target, "defg")
        await asyncio.sleep(0)
        tasks[1].cancel()
        await asyncio.wait([tasks[1]])
        assert target.waiting == 3
        far.gate.set()
        results = await asyncio.gather(*first, *tasks, return_exceptions=True)
        assert [isinstance(result, asyncio.CancelledError) for result in results] == [False] * 4 + [True] + [False] * 2
        assert far.requests == [["a", "b", "c"], ["d", "f", "g"]]

    run(main)


def test_a_cancelled_entry_that_was_sent_leaves_the_others_their_answer() -> None:
    async def main() -> None:
        far = Far()
        far.gate.clear()
        tasks = submitting(batcher(far.send), "abc")
        await until(lambda: len(far.requests) == 1)
        tasks[0].cancel()
        far.gate.set()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert isinstance(results[0], asyncio.CancelledError) and results[1:] == [Ok("b"), Ok("c")]

    run(main)


def test_the_last_to_give_up_leaves_no_timer_behind() -> None:
    async def main() -> None:
        far = Far()
        target = batcher(far.send, linger_ms=60_000)
        (task,) = submitting(target, "a")
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
        assert target._timer is None and far.requests == []
        assert len(await asyncio.gather(*submitting(target, "bcd"))) == 3

    run(main)


def test_who_has_no_place_is_told_so_at_once() -> None:
    async def main() -> None:
        far = Far()
        target = batcher(far.send, entries=1, concurrency=1, queue=QueueLimits(4, 1_000))
        far.gate.clear()
        sent = submitting(target, "-")
        await until(lambda: len(far.requests) == 1)
        a, b = submitting(target, "abc", "a"), submitting(target, "de", "b")
        assert "busy" in failed(await a[2], "transient")  # one tenant has half at most
        (c,) = submitting(target, "f", "c")
        assert "busy" in failed(await a[1], "transient")  # its newest made place for a tenant that had none
        far.gate.set()
        assert [ok(result) for result in await asyncio.gather(*sent, a[0], *b, c)] == ["-", "a", "d", "e", "f"]

    run(main)


@pytest.mark.parametrize("fault", ["raise", "short"])
def test_a_request_that_fails_by_itself_is_transient_for_all_in_it(
    fault: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def send(payloads: Sequence[str]) -> Sequence[SinkResult]:
        if fault == "raise":
            raise RuntimeError("secret")
        return [Ok()] * (len(payloads) - 1)

    async def main() -> None:
        for result in await asyncio.gather(*submitting(batcher(send), "abc")):
            assert "secret" not in failed(result, "transient")

    with caplog.at_level(logging.WARNING):
        run(main)
    assert "event=batch_failed" in caplog.text and "secret" not in caplog.text


def test_a_request_refused_as_a_whole_is_sent_in_parts_until_the_one_at_fault_is_alone() -> None:
    requests: list[str] = []

    async def send(payloads: Sequence[str]) -> Sequence[SinkResult] | Refused:
        requests.append("".join(payloads))
        return Refused(PERMANENT) if "x" in payloads else [Ok(payload) for payload in payloads]

    async def main() -> None:
        target = batcher(send, entries=8)
        bad, good = submitting(target, "axbc", "bad"), submitting(target, "1234", "good")
        results = await asyncio.gather(*bad, *good)
        assert results == [Ok("a"), PERMANENT, *map(Ok, "bc1234")]
        # By tenant: the other one is out of it after the first cut.
        assert requests == ["a1x2b3c4", "axbc", "ax", "a", "x", "bc", "1234"]

    run(main)


def test_who_gave_up_meanwhile_is_not_sent_again() -> None:
    requests: list[str] = []
    tasks: list[asyncio.Task[SinkResult]] = []

    async def send(payloads: Sequence[str]) -> Sequence[SinkResult] | Refused:
        requests.append("".join(payloads))
        if len(requests) == 1:
            tasks[0].cancel()
            await asyncio.wait([tasks[0]])
            return Refused(PERMANENT)
        return [Ok(payload) for payload in payloads]

    async def main() -> None:
        tasks.extend(submitting(batcher(send, entries=4), "abcd"))
        await asyncio.wait(tasks)
        assert requests == ["abcd", "b", "cd"]

    run(main)


def test_closing_answers_who_waits_and_who_is_in_flight_and_takes_no_more() -> None:
    async def main() -> None:
        far = Far()
        target = batcher(far.send, concurrency=1)
        far.gate.clear()
        tasks = submitting(target, "abcde")
        await until(lambda: len(far.requests) == 1)
        await target.close()
        await target.close()
        for result in await asyncio.gather(*tasks, target.submit("t", 1, "f")):
            assert "closed" in failed(result, "transient")
        assert far.running == 0 and len(far.requests) == 1

    run(main)
