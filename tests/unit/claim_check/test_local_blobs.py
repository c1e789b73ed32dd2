"""The store on local files, on a real disk: whole or not at all, in its own directory, and honest about trouble."""

from __future__ import annotations

import asyncio
import os
import shutil
import stat
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from ankusa.claim_check import local_blobs
from ankusa.claim_check.blobs import BlobError
from ankusa.claim_check.local_blobs import RESERVE_BYTES, LocalBlobs
from ankusa.claim_check.reference import claim_id, first_at, pack_id

AT = 1_700_000_000_000
PACK = pack_id(AT, 1)


@asynccontextmanager
async def store(root: Path) -> AsyncIterator[LocalBlobs]:
    blobs = LocalBlobs(root)
    try:
        yield blobs
    finally:
        await blobs.close()


def run(root: Path, body: Callable[[LocalBlobs], Awaitable[None]]) -> None:
    async def main() -> None:
        async with store(root) as blobs:
            await body(blobs)

    asyncio.run(main())


async def listed(blobs: LocalBlobs, before: str) -> list[tuple[str, str]]:
    return sorted([found async for found in blobs.older(before)])


def test_what_was_put_is_read_again_by_another_opening(tmp_path: Path) -> None:
    async def put(blobs: LocalBlobs) -> None:
        await blobs.put("acme", PACK, [b"head", b"", b"body" * 1000])

    async def read(blobs: LocalBlobs) -> None:
        assert await blobs.read("acme", PACK, 0, 6) == b"headbo"
        assert await blobs.read("acme", PACK, 4, 10**6) == b"body" * 1000
        assert await blobs.read("acme", PACK, 10**6, 5) == b""
        assert await blobs.read("globex", PACK, 0, 4) is None
        assert await blobs.read("acme", pack_id(AT, 2), 0, 4) is None

    run(tmp_path / "claims", put)
    run(tmp_path / "claims", read)


def test_files_are_the_owners_alone(tmp_path: Path) -> None:
    async def body(blobs: LocalBlobs) -> None:
        await blobs.put("acme", PACK, [b"x"])
        file = tmp_path / "acme" / PACK
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        assert stat.S_IMODE(file.parent.stat().st_mode) & 0o077 == 0
        assert [entry.name for entry in file.parent.iterdir()] == [PACK]

    run(tmp_path, body)


@pytest.mark.parametrize(
    ("tenant", "pack"),
    [("..", PACK), ("a/b", PACK), ("", PACK), ("acme", "../x"), ("acme", PACK + ".part"), ("acme", claim_id(PACK, 1))],
)
def test_a_name_that_is_none_of_ours_makes_no_path(tmp_path: Path, tenant: str, pack: str) -> None:
    async def body(blobs: LocalBlobs) -> None:
        for call in (blobs.put(tenant, pack, [b"x"]), blobs.read(tenant, pack, 0, 1), blobs.delete(tenant, pack)):
            with pytest.raises(ValueError, match="not the name of a pack"):
                await call

    run(tmp_path, body)


def test_a_put_that_fails_half_way_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fsync(_: int) -> None:
        raise OSError(28, "No space left on device")

    async def body(blobs: LocalBlobs) -> None:
        with monkeypatch.context() as patched:
            patched.setattr(os, "fsync", fsync)
            with pytest.raises(BlobError, match="No space left on device"):
                await blobs.put("acme", PACK, [b"x"])
        assert await blobs.read("acme", PACK, 0, 1) is None
        assert list((tmp_path / "acme").glob("*")) == []
        await blobs.put("acme", PACK, [b"x"])

    run(tmp_path, body)


def test_a_pack_is_in_place_only_when_it_is_durable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[bool] = []
    fsync = os.fsync

    def watched(descriptor: int) -> None:
        synced.append((tmp_path / "acme" / PACK).exists())
        fsync(descriptor)

    async def body(blobs: LocalBlobs) -> None:
        monkeypatch.setattr(os, "fsync", watched)
        await blobs.put("acme", PACK, [b"x"])

    run(tmp_path, body)
    # The root for the tenant's directory, the file, and after the renaming the directory of the file.
    assert synced == [False, False, True]


def test_the_last_of_the_disk_is_not_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = shutil.disk_usage(tmp_path)

    async def body(blobs: LocalBlobs) -> None:
        with monkeypatch.context() as patched:
            patched.setattr(shutil, "disk_usage", lambda _: usage._replace(free=RESERVE_BYTES + 3))
            with pytest.raises(BlobError, match="disk full"):
                await blobs.put("acme", PACK, [b"xx", b"xx"])
            await blobs.put("acme", PACK, [b"xxx"])

    run(tmp_path, body)


def test_a_directory_that_lost_its_mark_is_not_empty_but_away(tmp_path: Path) -> None:
    async def body(blobs: LocalBlobs) -> None:
        await blobs.put("acme", PACK, [b"x"])
        moved = tmp_path.with_name("moved")
        tmp_path.rename(moved)
        tmp_path.mkdir()
        for call in (blobs.put("acme", PACK, [b"x"]), blobs.read("acme", PACK, 0, 1), listed(blobs, first_at(AT * 2))):
            with pytest.raises(BlobError, match="mounted"):
                await call
        assert list(tmp_path.iterdir()) == []
        tmp_path.rmdir()
        moved.rename(tmp_path)
        assert await blobs.read("acme", PACK, 0, 1) == b"x"

    run(tmp_path, body)


def test_a_root_that_cannot_be_had_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(BlobError, match="file"):
        LocalBlobs(tmp_path / "file" / "claims")


def test_what_is_older_is_listed_and_can_be_deleted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_blobs, "_LISTED", 3)
    packs = [pack_id(AT + n, n) for n in range(10)]

    async def body(blobs: LocalBlobs) -> None:
        for pack in packs:
            await blobs.put("acme", pack, [b"x"])
        await blobs.put("globex", packs[0], [b"x"])
        (tmp_path / "acme" / (packs[1] + ".part")).write_bytes(b"half")
        (tmp_path / "acme" / "README").write_text("not ours")
        (tmp_path / "lost+found").mkdir()
        found = await listed(blobs, first_at(AT + 5))
        assert sorted(set(found)) == sorted([("acme", pack) for pack in packs[:5]] + [("globex", packs[0])])
        for tenant, pack in {*found, ("acme", pack_id(1, 1)), ("nobody", packs[0])}:
            await blobs.delete(tenant, pack)
        assert await listed(blobs, first_at(AT + 5)) == []
        assert await blobs.read("acme", packs[5], 0, 1) == b"x"
        assert {file.name for file in (tmp_path / "acme").iterdir()} == {*packs[5:], "README"}

    run(tmp_path, body)


def test_a_put_that_nobody_waits_for_leaves_no_pack(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    let_go, began, fsync = threading.Event(), threading.Event(), os.fsync

    def slow(descriptor: int) -> None:
        began.set()
        assert let_go.wait(30)
        fsync(descriptor)

    async def body(blobs: LocalBlobs) -> None:
        (tmp_path / "acme").mkdir()
        monkeypatch.setattr(os, "fsync", slow)
        putting = asyncio.create_task(blobs.put("acme", PACK, [b"x"]))
        await asyncio.to_thread(began.wait, 30)
        putting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await putting
        let_go.set()
        blobs._writers.shutdown(wait=True)
        assert list((tmp_path / "acme").iterdir()) == []

    run(tmp_path, body)


def test_readers_that_hang_keep_no_body_from_being_stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    let_go, pread = threading.Event(), os.pread

    def slow(*arguments: Any) -> bytes:
        assert let_go.wait(30)
        return pread(*arguments)

    async def body(blobs: LocalBlobs) -> None:
        await blobs.put("acme", PACK, [b"x"])
        monkeypatch.setattr(os, "pread", slow)
        reads = [asyncio.create_task(blobs.read("acme", PACK, 0, 1)) for _ in range(20)]
        await blobs.put("acme", pack_id(AT, 2), [b"y"])
        assert await asyncio.to_thread(lambda: 1) == 1
        let_go.set()
        assert await asyncio.gather(*reads) == [b"x"] * 20

    run(tmp_path, body)


def test_closed_it_says_so(tmp_path: Path) -> None:
    async def body(blobs: LocalBlobs) -> None:
        await blobs.close()
        with pytest.raises(BlobError, match="closed"):
            await blobs.put("acme", PACK, [b"x"])

    run(tmp_path, body)


def test_in_a_directory_that_a_fleet_shares_nothing_is_listed_as_nobodys(tmp_path: Path) -> None:
    """A pack that this node does not know may be another's, and needed."""

    async def body() -> None:
        mine, theirs = LocalBlobs(tmp_path, shared=True), LocalBlobs(tmp_path, shared=True)
        await theirs.put("acme", PACK, [b"x"])
        assert await listed(mine, first_at(AT + 1)) == []
        assert await mine.read("acme", PACK, 0, 1) == b"x"
        await mine.delete("acme", PACK)
        assert await theirs.read("acme", PACK, 0, 1) is None
        for blobs in (mine, theirs):
            await blobs.close()

    asyncio.run(body())
