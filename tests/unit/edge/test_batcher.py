"""Group commit: what shares an append, the bounds, the deadlines, and a request that goes away."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence

from ankusa.edge.batcher import APPEND_DEADLINE_MS, BATCH_BYTES, Batcher
from schemas import config
from schemas.append import Answer, AnswerStatus, Submission
from schemas.records import Envelope
from tests.support.edge import MemoryLog, run, until

AT = 1_700_000_000_000


class Clock:
    def __init__(self) -> None:
        self.at = AT

    def __call__(self) -> int:
        return self.at


def hook(number: int, at: int = AT, body: bytes = b"b") -> Submission:
    name = f"hook-{number}"
    return Submission(Envelope(name, "orders", "acme", at, ("http",), (), None, name), body)


def submit(batcher: Batcher, number: int, *, at: int = AT, size_bytes: int = 1) -> asyncio.Future[Answer]:
    answered: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
    assert batcher.submit(hook(number, at), size_bytes, lambda answer: tell(answered, answer))
    return answered


def tell(answered: asyncio.Future[Answer], answer: Answer) -> None:
    if not answered.done():
        answered.set_result(answer)


def nobody(answer: Answer) -> None:
    """Hears of no answer."""


def ids(batches: Sequence[Sequence[Submission]]) -> list[list[str]]:
    return [[submission.entry.id for submission in batch] for batch in batches]


def test_one_append_is_in_flight_and_the_next_takes_everything_that_waits() -> None:
    async def body() -> None:
        log = MemoryLog()
        batcher = Batcher(log, config.Batcher(), Clock())
        log.gate.clear()
        together = [submit(batcher, number) for number in range(3)]
        await until(lambda: len(log.batches) == 1)
        waiting = [submit(batcher, number) for number in range(3, 8)]
        await asyncio.sleep(0)
        assert ids(log.batches) == [["hook-0", "hook-1", "hook-2"]]
        log.gate.set()
        answers = await asyncio.gather(*together, *waiting)
        assert ids(log.batches)[1:] == [[f"hook-{number}" for number in range(3, 8)]]
        assert [answer.id for answer in answers] == [f"hook-{number}" for number in range(8)]
        assert (batcher.hooks, batcher.queued_bytes) == (0, 0)
        batcher.close()

    run(body)


def test_a_batch_is_bounded_in_hooks_and_in_bytes() -> None:
    async def body() -> None:
        log = MemoryLog()
        batcher = Batcher(log, config.Batcher(max_batch=4), Clock())
        await asyncio.gather(*[submit(batcher, number) for number in range(9)])
        assert [len(batch) for batch in log.batches] == [4, 4, 1]
        log.batches.clear()
        sizes = [BATCH_BYTES - 1, 1, 1, BATCH_BYTES + 1, 1]
        await asyncio.gather(*[submit(batcher, number, size_bytes=size) for number, size in enumerate(sizes)])
        assert ids(log.batches) == [["hook-0", "hook-1"], ["hook-2"], ["hook-3"], ["hook-4"]]
        batcher.close()

    run(body)


def test_a_delay_collects_hooks_and_a_full_batch_does_not_wait_for_it() -> None:
    async def body() -> None:
        log = MemoryLog()
        batcher = Batcher(log, config.Batcher(max_delay_ms=60_000, max_batch=3), Clock())
        answers = [submit(batcher, 0), submit(batcher, 1)]
        await asyncio.sleep(0.02)
        assert log.batches == []
        answers.append(submit(batcher, 2))
        async with asyncio.timeout(30):
            await asyncio.gather(*answers)
        assert ids(log.batches) == [["hook-0", "hook-1", "hook-2"]]
        last = submit(batcher, 3)
        await batcher.drain()
        assert last.result().id == "hook-3"
        assert log.deadlines[0] == AT + APPEND_DEADLINE_MS + 60_000
        quick = Batcher(log, config.Batcher(max_delay_ms=1), Clock())
        assert (await submit(quick, 4)).status is AnswerStatus.ACCEPTED
        batcher.close()
        quick.close()

    run(body)


def test_a_full_queue_refuses_at_once_and_counts_what_is_in_flight() -> None:
    async def body() -> None:
        log = MemoryLog()
        log.gate.clear()
        batcher = Batcher(log, config.Batcher(max_queue=2), Clock())
        answers = [submit(batcher, 0)]
        await until(lambda: len(log.batches) == 1)
        answers.append(submit(batcher, 1))
        assert batcher.full
        assert not batcher.submit(hook(2), 1, nobody)
        log.gate.set()
        await asyncio.gather(*answers)
        assert (await submit(batcher, 3)).id == "hook-3"
        batcher.close()

    run(body)


def test_bytes_queued_and_bytes_reserved_share_one_bound() -> None:
    async def body() -> None:
        log = MemoryLog()
        log.gate.clear()
        batcher = Batcher(log, config.Batcher(max_queue_bytes=100), Clock())
        answered = submit(batcher, 0, size_bytes=60)
        assert batcher.reserve(40)
        assert not batcher.reserve(1)
        assert batcher.full
        assert not batcher.submit(hook(1), 1, nobody)
        batcher.release(40)
        assert not batcher.submit(hook(1), 41, nobody)
        other = submit(batcher, 1, size_bytes=40)
        log.gate.set()
        await asyncio.gather(answered, other)
        assert batcher.reserve(100)
        batcher.close()

    run(body)


def test_the_deadline_of_an_append_is_its_first_hooks() -> None:
    async def body() -> None:
        log = MemoryLog()
        clock = Clock()
        clock.at = AT + 100
        batcher = Batcher(log, config.Batcher(), clock)
        await asyncio.gather(submit(batcher, 0), submit(batcher, 1, at=AT + 100))
        assert log.deadlines == [AT + APPEND_DEADLINE_MS]
        batcher.close()

    run(body)


def test_what_waited_past_its_deadline_is_refused_and_never_appended() -> None:
    async def body() -> None:
        log = MemoryLog()
        log.gate.clear()
        clock = Clock()
        batcher = Batcher(log, config.Batcher(), clock)
        first = submit(batcher, 0)
        await until(lambda: len(log.batches) == 1)
        late = submit(batcher, 1)
        clock.at = AT + APPEND_DEADLINE_MS + 1
        in_time = submit(batcher, 2, at=clock.at)
        log.gate.set()
        assert (await late).status is AnswerStatus.STORE_UNAVAILABLE
        assert (await late).retry_after_ms > 0
        assert (await in_time).status is AnswerStatus.ACCEPTED
        assert (await first).status is AnswerStatus.ACCEPTED
        assert ids(log.batches) == [["hook-0"], ["hook-2"]]
        assert (batcher.hooks, batcher.queued_bytes) == (0, 0)
        batcher.close()

    run(body)


def test_hooks_behind_an_append_that_never_ends_are_refused_by_the_timer() -> None:
    async def body() -> None:
        log = MemoryLog()
        log.gate.clear()
        clock = Clock()
        batcher = Batcher(log, config.Batcher(), clock)
        submit(batcher, 0)
        await until(lambda: len(log.batches) == 1)
        late, later = submit(batcher, 1), submit(batcher, 2, at=AT + 2)
        clock.at = AT + APPEND_DEADLINE_MS + 1
        batcher._expire()
        assert (await late).status is AnswerStatus.STORE_UNAVAILABLE
        assert not later.done()
        clock.at += 10  # the timer has armed itself for the next one
        assert (await later).status is AnswerStatus.STORE_UNAVAILABLE
        assert batcher.hooks == 1
        log.gate.set()
        await batcher.drain()
        batcher.close()

    run(body)


def test_a_request_that_goes_away_takes_nothing_back() -> None:
    async def body() -> None:
        log = MemoryLog()
        log.gate.clear()
        batcher = Batcher(log, config.Batcher(), Clock())
        in_flight = submit(batcher, 0)
        await until(lambda: len(log.batches) == 1)
        queued, other = submit(batcher, 1), submit(batcher, 2)
        in_flight.cancel()
        queued.cancel()
        log.gate.set()
        assert (await other).status is AnswerStatus.ACCEPTED
        assert [submission.entry.id for submission in log.stored] == ["hook-0", "hook-1", "hook-2"]
        assert batcher.hooks == 0
        batcher.close()

    run(body)


def test_a_slow_append_holds_up_no_other_where_that_is_said() -> None:
    async def body() -> None:
        log = MemoryLog()
        batcher = Batcher(log, config.Batcher(), Clock(), slow_append_ms=1)
        log.gate.clear()
        answers = [submit(batcher, 0)]
        await until(lambda: len(log.batches) == 1)
        for number in range(1, 5):  # each begins although all before it have not ended
            answers.append(submit(batcher, number))
            await until(lambda number=number: len(log.batches) == number + 1)  # type: ignore[misc]
        draining = asyncio.create_task(batcher.drain())
        await asyncio.sleep(0)
        assert not draining.done()
        assert batcher.hooks == 5
        log.gate.set()
        await draining
        assert {answer.status for answer in await asyncio.gather(*answers)} == {AnswerStatus.ACCEPTED}
        assert batcher.hooks == 0
        batcher.close()

    run(body)


class BrokenLog:
    """Breaks the port's promise: raises, or answers the wrong number."""

    def __init__(self, answers: list[Answer] | None) -> None:
        self.answers = answers

    async def append(self, submissions: Sequence[Submission], deadline_at: int) -> list[Answer]:
        if self.answers is None:
            raise ValueError("broken")
        return self.answers

    async def probe(self) -> str | None:
        return None


class EagerlyBrokenLog(BrokenLog):
    """Raises with the call, before anything can be awaited."""

    def append(self, submissions: Sequence[Submission], deadline_at: int) -> Awaitable[list[Answer]]:  # type: ignore[override]
        if self.answers is None:
            raise ValueError("broken")
        return super().append(submissions, deadline_at)


def test_a_log_that_breaks_its_promise_costs_its_batch_and_nothing_else() -> None:
    async def body() -> None:
        for broken in (BrokenLog(None), BrokenLog([]), EagerlyBrokenLog(None)):
            batcher = Batcher(broken, config.Batcher(), Clock())
            assert (await submit(batcher, 0)).status is AnswerStatus.STORE_UNAVAILABLE
            broken.answers = [Answer(AnswerStatus.ACCEPTED, "hook-1")]
            assert (await submit(batcher, 1)).status is AnswerStatus.ACCEPTED
            batcher.close()

    run(body)
