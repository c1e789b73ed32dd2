"""The health watch: what makes it refuse, that deliveries go on meanwhile, and that it recovers by itself."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from ankusa.core.fold import Accepted
from ankusa.store.errors import StoreError
from schemas.records import Outcome, OutcomeBatch, OutcomeKind
from streams.local import health as watching
from streams.local.health import RESERVE_BYTES, Health, probe
from streams.local.log import LocalLog
from tests.unit.store.entries import AT, hook


def run(tmp_path: Path, body: Callable[[LocalLog, Health], Awaitable[None]]) -> None:
    async def main() -> None:
        log = LocalLog(tmp_path / "store", lambda: AT)
        health = Health(log)
        try:
            await body(log, health)
        finally:
            await health.stop()
            log.close()

    asyncio.run(main())


async def until(done: Callable[[], object]) -> None:
    async with asyncio.timeout(20):
        while not done():
            await asyncio.sleep(0.002)


def disk_with(free_bytes: int) -> Callable[[object], SimpleNamespace]:
    return lambda _: SimpleNamespace(total=1 << 40, used=0, free=free_bytes)


def test_a_directory_that_takes_a_durable_write_is_well_and_left_clean(tmp_path: Path) -> None:
    assert probe(tmp_path) is None
    assert list(tmp_path.iterdir()) == []


def test_a_directory_that_is_gone_is_named(tmp_path: Path) -> None:
    reason = probe(tmp_path / "gone")
    assert reason is not None
    assert "gone" in reason


def test_probes_that_meet_do_not_call_each_other_a_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fsync = os.fsync

    def overtaken(descriptor: int) -> None:
        fsync(descriptor)
        for file in tmp_path.iterdir():
            file.unlink()

    monkeypatch.setattr(os, "fsync", overtaken)
    assert probe(tmp_path) is None


def test_many_probes_at_once(tmp_path: Path) -> None:
    async def body(log: LocalLog, health: Health) -> None:
        assert set(await asyncio.gather(*(health.check() for _ in range(50)))) == {None}

    run(tmp_path, body)


def test_an_fsync_that_fails_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: int) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "fsync", refuse)
    reason = probe(tmp_path)
    assert reason is not None
    assert "Input/output error" in reason


def test_little_room_refuses_hooks_and_still_takes_outcomes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def body(log: LocalLog, health: Health) -> None:
        (answer,) = await log.commit([hook("a")], [])
        assert isinstance(answer, Accepted)
        monkeypatch.setattr(shutil, "disk_usage", disk_with(RESERVE_BYTES - 1))
        reason = await health.check()
        assert reason is not None
        assert "disk full" in reason
        with pytest.raises(StoreError, match="disk full"):
            await log.commit([hook("b")], [])
        log.publish(OutcomeBatch((Outcome(answer.seq, 0, 0, OutcomeKind.DELIVERED, AT, AT, 1),)))
        assert log.tables.counts.total() == (0, 0, 0)
        monkeypatch.setattr(shutil, "disk_usage", disk_with(RESERVE_BYTES))
        assert await health.check() is None
        await log.commit([hook("b")], [])

    run(tmp_path, body)


def test_a_store_that_refused_is_opened_again_when_the_probe_succeeds_and_not_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def body(log: LocalLog, health: Health) -> None:
        await log.commit([hook("a")], [])
        monkeypatch.setattr(shutil, "disk_usage", disk_with(0))
        log.fail("No space left on device")
        assert await health.check() == "No space left on device"
        assert health.recoveries == 0
        monkeypatch.undo()
        assert await health.check() is None
        assert health.recoveries == 1
        await log.commit([hook("b")], [])
        assert log.tables.counts.total() == (2, 0, 0)

    run(tmp_path, body)


def test_a_store_that_cannot_be_opened_yet_stays_refused_and_is_tried_again(tmp_path: Path) -> None:
    async def body(log: LocalLog, health: Health) -> None:
        await log.commit([hook("a")], [])
        log.fail("disk gone")
        away = tmp_path / "away"
        log.tables.close()
        log.path.rename(away)
        log.path.write_text("in the way")
        assert await health.check() == "disk gone"
        with pytest.raises(StoreError):
            log.publish(OutcomeBatch(()))
        log.path.unlink()
        away.rename(log.path)
        assert await health.check() is None
        assert log.tables.counts.total() == (1, 0, 0)

    run(tmp_path, body)


def test_the_watch_recovers_by_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watching, "PROBE_MS", 1)

    async def body(log: LocalLog, health: Health) -> None:
        await health.start()
        for number in range(3):
            log.fail("disk gone")
            await until(lambda: log.refusing is None)
            await log.commit([hook(f"{number}")], [])
        assert health.recoveries == 3

    run(tmp_path, body)
