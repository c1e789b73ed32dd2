"""The claim-check gateway on a real socket, over a blob store of the test's, in a thread of its own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from ankusa.claim_check import pack as packs
from ankusa.claim_check.blobs import BlobStore
from ankusa.claim_check.reader import Reader
from ankusa.claim_check.reference import pack_id, reference
from api.claims import build_claims_app
from api.serving import bind, serve

AT = 1_700_000_000_000
WAIT_S = 60.0


class Gateway:
    """A running gateway. `port` is its own."""

    def __init__(self, loop: asyncio.AbstractEventLoop, blobs: BlobStore, port: int) -> None:
        self._loop = loop
        self._blobs = blobs
        self._stored = 0
        self.port = port

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        """What `work` answers on the gateway's loop."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(WAIT_S)

    def store(self, *bodies: bytes, tenant_id: str = "acme") -> list[str]:
        """The references of bodies that are stored as one pack."""
        self._stored += 1
        pack = pack_id(AT, self._stored)
        parts: Sequence[bytes] = [packs.head([len(body) for body in bodies]), *bodies]
        self.run(self._blobs.put(tenant_id, pack, parts))
        return [reference(tenant_id, pack, position) for position in range(len(bodies))]


@contextmanager
def gateway(blobs: BlobStore) -> Iterator[Gateway]:
    """Serve `blobs` until the end of the block."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="gateway")
    thread.start()
    try:
        bound = bind("127.0.0.1", 0)
        listener = asyncio.run_coroutine_threadsafe(serve(build_claims_app(Reader(blobs)), bound), loop).result(WAIT_S)
        try:
            yield Gateway(loop, blobs, listener.port)
        finally:
            asyncio.run_coroutine_threadsafe(listener.close(), loop).result(WAIT_S)
            asyncio.run_coroutine_threadsafe(blobs.close(), loop).result(WAIT_S)
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(WAIT_S)
        loop.close()


def path_of(claim: str) -> str:
    """The path that a reference is redeemed at."""
    return "/v1/claims/" + "/".join(claim.split(":")[4:])
