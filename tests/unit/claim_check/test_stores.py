"""Which store a node opens: its own disk will do for one, and never for a fleet."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from ankusa.claim_check.blobs import BlobError
from ankusa.claim_check.local_blobs import LocalBlobs
from ankusa.claim_check.reference import first_at, pack_id
from ankusa.claim_check.stores import FOLDER, open_store
from ankusa.claim_check.unset_blobs import MESSAGE, UnsetBlobs
from schemas.config import ClaimStore

AT = 1_700_000_000_000
PACK = pack_id(AT, 1)


def test_one_node_stores_on_its_own_disk_unless_it_is_told_where(tmp_path: Path) -> None:
    assert isinstance(open_store(ClaimStore(), str(tmp_path)), LocalBlobs)
    assert (tmp_path / FOLDER).is_dir()


def test_a_fleet_that_is_told_of_no_store_stores_nothing_and_says_what_is_missing(tmp_path: Path) -> None:
    async def body() -> None:
        blobs = open_store(ClaimStore(), str(tmp_path), shared=True)
        assert isinstance(blobs, UnsetBlobs)
        for asked in (blobs.put("acme", PACK, [b"x"]), blobs.read("acme", PACK, 0, 1), blobs.delete("acme", PACK)):
            with pytest.raises(BlobError, match=r"claim_check\.store is not set"):
                await asked
        assert [found async for found in blobs.older(first_at(AT + 1))] == []
        await blobs.close()

    asyncio.run(body())
    assert list(tmp_path.iterdir()) == []
    assert "every worker and gateway" in MESSAGE


def test_a_fleet_shares_the_directory_it_is_given(tmp_path: Path) -> None:
    async def body() -> None:
        one, other = (
            open_store(ClaimStore(path=str(tmp_path / "claims")), str(tmp_path / name), shared=True) for name in "ab"
        )
        await one.put("acme", PACK, [b"x"])
        assert await other.read("acme", PACK, 0, 1) == b"x"
        for blobs in (one, other):
            await blobs.close()

    asyncio.run(body())
