"""The blob store of a fleet that was given none: it stores nothing and says what is missing.

A disk of one node's own would not do: other nodes read packs too, and its rows may be another's tomorrow. Bodies that
are small enough to go inline need no store.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

from ankusa.claim_check.blobs import BlobError

MESSAGE = (
    "claim_check.store is not set: with `log.type: kafka` give one that every worker and gateway reaches "
    "(type: object, or a path that all of them mount)"
)


class UnsetBlobs:
    """Implements `ankusa.claim_check.blobs.BlobStore`."""

    async def put(self, tenant_id: str, pack: str, parts: Sequence[bytes]) -> None:
        raise BlobError(MESSAGE)

    async def read(self, tenant_id: str, pack: str, start: int, length: int) -> bytes | None:
        raise BlobError(MESSAGE)

    async def delete(self, tenant_id: str, pack: str) -> None:
        raise BlobError(MESSAGE)

    async def older(self, pack: str) -> AsyncIterator[tuple[str, str]]:
        nothing: tuple[tuple[str, str], ...] = ()
        for found in nothing:
            yield found

    async def close(self) -> None:
        """It holds nothing."""
