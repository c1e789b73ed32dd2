"""The store on an object store: in obstore's own memory, and on S3 as moto's server speaks it."""

from __future__ import annotations

import asyncio
import socket
import urllib.request
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager

import pytest
from moto.server import ThreadedMotoServer
from obstore.store import MemoryStore

from ankusa.claim_check import stores
from ankusa.claim_check.blobs import BlobError, BlobStore
from ankusa.claim_check.object_blobs import ObjectBlobs
from ankusa.claim_check.reference import claim_id, first_at, pack_id
from ankusa.claim_check.stores import ClaimStoreError, check_store, open_store
from ankusa.store.errors import StoreError
from schemas.config import ClaimStore

AT = 1_700_000_000_000
PACK = pack_id(AT, 1)
LARGE = bytes(range(256)) * 50_000
KEYS = {"access_key_id": "test", "secret_access_key": "s3cr3t-k3y", "region": "us-east-1"}


def s3(port: int, bucket: str = "bucket") -> BlobStore:
    options = {**KEYS, "endpoint": f"http://127.0.0.1:{port}"}
    spec = ClaimStore(type="object", url=f"s3://{bucket}/some/prefix", options=options)
    check_store(spec)
    return open_store(spec, "unused")


@contextmanager
def moto() -> Iterator[int]:
    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    try:
        _, port = server.get_host_and_port()
        for method, path in (("POST", "moto-api/reset"), ("PUT", "bucket")):  # its state is the process's
            urllib.request.urlopen(urllib.request.Request(f"http://127.0.0.1:{port}/{path}", method=method)).close()
        yield port
    finally:
        server.stop()


@pytest.fixture(params=["memory", "s3"])
def blobs(request: pytest.FixtureRequest) -> Iterator[BlobStore]:
    if request.param == "memory":
        yield ObjectBlobs(MemoryStore())
        return
    with moto() as port:
        yield s3(port)


def run(body: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(body())  # type: ignore[arg-type]


async def listed(blobs: BlobStore, before: str) -> list[tuple[str, str]]:
    found: AsyncIterator[tuple[str, str]] = blobs.older(before)
    return sorted([one async for one in found])


def test_what_was_put_is_read_again(blobs: BlobStore) -> None:
    async def body() -> None:
        await blobs.put("acme", PACK, [b"head", b"", LARGE])
        assert await blobs.read("acme", PACK, 0, 6) == b"head" + LARGE[:2]
        assert await blobs.read("acme", PACK, 4, len(LARGE)) == LARGE
        assert await blobs.read("acme", PACK, 4 + len(LARGE) - 3, 100) == LARGE[-3:]
        assert await blobs.read("globex", PACK, 0, 4) is None
        assert await blobs.read("acme", pack_id(AT, 2), 0, 4) is None
        await blobs.close()

    run(body)


def test_a_pack_can_be_deleted_and_none_is_taken_for_a_left_over(blobs: BlobStore) -> None:
    async def body() -> None:
        await blobs.put("acme", PACK, [b"x"])
        assert await listed(blobs, first_at(AT * 2)) == []
        for _ in range(2):
            await blobs.delete("acme", PACK)
        assert await blobs.read("acme", PACK, 0, 1) is None

    run(body)


@pytest.mark.parametrize(
    ("tenant", "pack"), [("..", PACK), ("a/b", PACK), ("acme", "../x"), ("acme", claim_id(PACK, 1))]
)
def test_a_name_that_is_none_of_ours_makes_no_path(tenant: str, pack: str) -> None:
    async def body() -> None:
        blobs = ObjectBlobs(MemoryStore())
        for call in (blobs.put(tenant, pack, [b"x"]), blobs.read(tenant, pack, 0, 1), blobs.delete(tenant, pack)):
            with pytest.raises(ValueError, match="not the name of a pack"):
                await call

    run(body)


def test_a_bucket_that_is_gone_is_trouble_and_not_a_pack_that_is_not_there() -> None:
    with moto() as port:

        async def body() -> None:
            blobs = s3(port, "another")
            for call in (blobs.put("acme", PACK, [b"x"]), blobs.read("acme", PACK, 0, 1)):
                with pytest.raises(BlobError) as raised:
                    await call
                assert "http" not in str(raised.value)

        run(body)


def test_a_store_that_is_away_says_so_without_its_address_or_keys() -> None:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]

    async def body() -> None:
        blobs = s3(port)
        for call in (blobs.put("acme", PACK, [b"x"]), blobs.read("acme", PACK, 0, 1), blobs.delete("acme", PACK)):
            with pytest.raises(BlobError) as raised:
                await call
            assert "127.0.0.1" not in str(raised.value)
            assert "s3cr3t" not in str(raised.value)
            assert 0 < len(str(raised.value)) <= 200

    run(body)


def test_a_store_that_hangs_can_be_given_up() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:

        async def body() -> None:
            blobs = s3(silent.getsockname()[1])
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.1):
                    await blobs.put("acme", PACK, [b"x"])

        run(body)


def test_without_the_extra_the_way_out_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stores.importlib.util, "find_spec", lambda _: None)
    with pytest.raises(ClaimStoreError) as raised:
        check_store(ClaimStore(type="object", url="s3://bucket"))
    assert (raised.value.field, raised.value.message) == (
        "type",
        "needs an extra: pip install 'ankusa-server[objects]'",
    )


def test_options_that_the_library_refuses_are_named_at_boot() -> None:
    spec = ClaimStore(type="object", url="s3://bucket", options={"access_key_id": "half-a-pair"})
    with pytest.raises(ClaimStoreError) as raised:
        check_store(spec)
    assert raised.value.field == "options"
    assert "half-a-pair" not in raised.value.message
    with pytest.raises(StoreError, match=r"claim_check\.store"):
        open_store(spec, "unused")


@pytest.mark.parametrize("url", ["s3://bucket", "s3://bucket/a/b", "gs://bucket/a", "az://account/container"])
def test_urls_of_every_kind(url: str) -> None:
    options = {"account_name": "account", "access_key": "a2V5"} if url.startswith("az") else {"skip_signature": "true"}
    spec = ClaimStore(type="object", url=url, options=options)
    check_store(spec)
    assert isinstance(open_store(spec, "unused"), ObjectBlobs)
    assert "a2V5" not in repr(spec)
