"""Reading a body by its reference: where it is in its pack, and its bytes in pieces (spec 04 "Claim-check gateway").

It needs the blob store and nothing else, so any process that reaches the store can serve references. Owns the walk
from a claim id to bytes; never checks what they are: the receiver has their sha256.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator

from msgspec import Struct

from ankusa.claim_check import pack as packs
from ankusa.claim_check import reference as references
from ankusa.claim_check.blobs import BlobError, BlobStore

log = logging.getLogger("ankusa.claim_check")

PIECE_BYTES = 1 << 20
"""What is read at a time: a few milliseconds of a disk, one request of an object store, and all of a body that a
reader holds in memory."""

READ_MS = 10_000
"""The longest one reading may take. Whoever waits for a body gives up at about that time."""


class Stored(Struct, frozen=True):
    """A body that is there: `length` bytes from `start` of a pack."""

    tenant_id: str
    pack: str
    start: int
    length: int


class Reader:
    """Reads bodies of one store."""

    def __init__(self, blobs: BlobStore) -> None:
        self._blobs = blobs

    async def find(self, tenant_id: str, claim_id: str) -> Stored | None:
        """Where the body is, None when there is none. Both names must be well-formed. Raises BlobError."""
        pack, position = references.place_of(claim_id)
        stored = await self._read(tenant_id, pack, 0, packs.head_bytes(position + 1))
        if stored is None:
            return None
        try:
            place = packs.place(stored, position)
        except packs.PackError as error:
            log.error("event=pack_damaged tenant=%s pack=%s reason=%s", tenant_id, pack, error)
            raise BlobError("the pack is damaged") from error
        return None if place is None else Stored(tenant_id, pack, *place)

    async def pieces(self, body: Stored, start: int, length: int) -> AsyncIterator[bytes]:
        """`length` bytes of a body from `start` on, in pieces. Raises BlobError, between any two of them too."""
        place, end = body.start + start, body.start + start + length
        while place < end:
            piece = await self._read(body.tenant_id, body.pack, place, min(PIECE_BYTES, end - place))
            if not piece:
                raise BlobError("the pack ends before its body" if piece is not None else "the pack has gone")
            yield piece
            place += len(piece)

    async def _read(self, tenant_id: str, pack: str, start: int, length: int) -> bytes | None:
        try:
            async with asyncio.timeout(READ_MS / 1000):
                return await self._blobs.read(tenant_id, pack, start, length)
        except TimeoutError as error:
            raise BlobError(f"the store did not answer within {READ_MS} ms") from error
