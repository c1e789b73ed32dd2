"""The port to a blob store: where packs are kept. Owns what a store promises; `local_blobs` and `object_blobs` do it.

A pack is written once and never changed. Its name is its tenant and its id, and no other code makes a path of them.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Protocol


class BlobError(Exception):
    """The store did not do it, or did not say so: worth another try. Its text is short and holds no secret."""


class BlobStore(Protocol):
    """One store. Its calls may take any time: who calls bounds them. They never block the event loop."""

    async def put(self, tenant_id: str, pack: str, parts: Sequence[bytes]) -> None:
        """Store `parts`, joined, as a pack: whole and durable once this returns. Raises BlobError."""

    async def read(self, tenant_id: str, pack: str, start: int, length: int) -> bytes | None:
        """Up to `length` bytes of a pack from `start` on, fewer only at its end; None when there is no such pack.
        Raises BlobError, also when that cannot be told."""

    async def delete(self, tenant_id: str, pack: str) -> None:
        """Delete a pack; one that is not there is no error. Raises BlobError."""

    def older(self, pack: str) -> AsyncIterator[tuple[str, str]]:
        """`(tenant, pack)` of what this node has stored there that sorts before `pack`, in no order, what was left half
        written among it; nothing where others may store too, for it cannot be told apart. Raises BlobError."""

    async def close(self) -> None: ...
