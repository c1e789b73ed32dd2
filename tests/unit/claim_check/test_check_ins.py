"""Check-ins by themselves: what a stop ends. What they do for rows is in `tests/contract/test_claim_check.py`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

import pytest

from ankusa.claim_check.check_ins import CheckInError, CheckIns
from schemas.records import CheckIn, Envelope
from tests.contract.blobs import ScriptedBlobs
from tests.contract.sinks import hang

AT = 1_700_000_000_000
BODY = b"x" * 100


class FakeHost:
    """Hooks 1 to 9, each with a body of 100 bytes."""

    partition_of: Callable[[int], int] | None = None

    def __init__(self) -> None:
        self.records: list[CheckIn] = []

    def hook(self, seq: int) -> tuple[Envelope, bytes] | None:
        return Envelope(f"hook-{seq}", "orders", "acme", AT, ("sqs",), (), None, f"hook-{seq}"), BODY

    def checked_in(self, seq: int) -> tuple[str, int] | None:
        found = [(record.pack, record.seqs.index(seq)) for record in self.records if seq in record.seqs]
        return found[0] if found else None

    async def check_in(self, record: CheckIn) -> None:
        self.records.append(record)


def make(host: FakeHost, blobs: ScriptedBlobs) -> CheckIns:
    return CheckIns(host, blobs, 1 << 20, lambda: AT, lambda: 7)


def test_a_stop_ends_packs_and_own_check_ins_and_hands_nothing_back() -> None:
    async def body() -> None:
        host, blobs, released = FakeHost(), ScriptedBlobs(), list[str]()
        blobs.script(hang)
        check_ins = make(host, blobs)
        assert check_ins.hold(1, "acme", 150, 64, partial(released.append, "row"))
        own = asyncio.create_task(check_ins.reference(2, "acme", BODY))
        while len(blobs.puts) < 2:
            await asyncio.sleep(0)
        await check_ins.close()
        with pytest.raises(asyncio.CancelledError):
            await own
        assert asyncio.all_tasks() == {asyncio.current_task()}
        assert (released, host.records, blobs.packs) == ([], [], {})
        await check_ins.close()
        assert not check_ins.hold(3, "acme", 150, 64, partial(released.append, "late"))

    asyncio.run(body())


def test_a_stop_before_a_pack_began_begins_none() -> None:
    async def body() -> None:
        check_ins = make(FakeHost(), blobs := ScriptedBlobs())
        released: list[str] = []
        assert check_ins.hold(1, "acme", 150, 64, partial(released.append, "row"))
        await check_ins.close()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert (released, blobs.puts) == ([], [])

    asyncio.run(body())


def test_it_counts_what_it_stored_and_what_failed() -> None:
    async def body() -> None:
        host, blobs, released = FakeHost(), ScriptedBlobs(), list[str]()
        blobs.script(OSError("boom"), None)
        check_ins = make(host, blobs)
        for seq in (1, 2):
            assert check_ins.hold(seq, "acme", 150, 64, partial(released.append, f"row-{seq}"))
        while len(released) < 2:
            await asyncio.sleep(0)
        assert (check_ins.stats.packs, check_ins.stats.failed) == (0, 1)
        reference = await check_ins.reference(1, "acme", BODY)
        assert await check_ins.reference(1, "acme", BODY) == reference
        assert await blobs.redeem(reference) == BODY
        stats = check_ins.stats
        assert (stats.packs, stats.bodies, stats.failed) == (1, 1, 1)
        assert stats.stored_bytes == len(next(iter(blobs.packs.values())))

    asyncio.run(body())


def test_a_failure_says_what_the_store_said_and_no_more_than_the_kind_of_what_it_should_not_raise() -> None:
    async def body() -> None:
        check_ins = make(FakeHost(), blobs := ScriptedBlobs())
        blobs.script(ValueError("the body is b'secret'"))
        with pytest.raises(CheckInError, match=r"^it raised ValueError$"):
            await check_ins.reference(1, "acme", BODY)

    asyncio.run(body())


def test_a_pack_is_of_one_partition() -> None:
    async def body() -> None:
        host, blobs, released = FakeHost(), ScriptedBlobs(), list[int]()
        host.partition_of = lambda seq: seq % 2
        check_ins = CheckIns(host, blobs, 1 << 20, lambda: AT, iter(range(10)).__next__)
        for seq in range(1, 7):
            assert check_ins.hold(seq, "acme", 150, 64, partial(released.append, seq))
        while len(released) < 6:
            await asyncio.sleep(0)
        assert sorted(record.seqs for record in host.records) == [(1, 3, 5), (2, 4, 6)]
        await check_ins.close()

    asyncio.run(body())
