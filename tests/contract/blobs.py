"""A blob store that a test tells what to do."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any

from ankusa.claim_check.reader import Reader
from ankusa.claim_check.reference import PREFIX


class ScriptedBlobs:
    """A store in memory. Each put goes by its script: None to store, an exception to raise, or a function to await
    before it stores; the last step goes on for ever. `puts` holds `(tenant, size)` of what it was asked to store."""

    def __init__(self) -> None:
        self.packs: dict[tuple[str, str], bytes] = {}
        self.puts: list[tuple[str, int]] = []
        self._script: Sequence[Any] = (None,)
        self._step = 0

    def script(self, *steps: Any) -> None:
        self._script, self._step = steps, 0

    async def put(self, tenant_id: str, pack: str, parts: Sequence[bytes]) -> None:
        self.puts.append((tenant_id, sum(map(len, parts))))
        step = self._script[min(self._step, len(self._script) - 1)]
        self._step += 1
        if isinstance(step, BaseException):
            raise step
        if step is not None:
            await step(None)
        assert (tenant_id, pack) not in self.packs, "a pack is written once"
        self.packs[tenant_id, pack] = b"".join(parts)

    async def read(self, tenant_id: str, pack: str, start: int, length: int) -> bytes | None:
        stored = self.packs.get((tenant_id, pack))
        return None if stored is None else stored[start : start + length]

    async def delete(self, tenant_id: str, pack: str) -> None:
        self.packs.pop((tenant_id, pack), None)

    async def older(self, pack: str) -> AsyncIterator[tuple[str, str]]:
        for tenant_id, name in list(self.packs):
            if name < pack:
                yield tenant_id, name

    async def close(self) -> None:
        """Nothing to release."""

    async def redeem(self, reference: str) -> bytes:
        """The body behind a reference, as the gateway finds it."""
        tenant_id, claim_id = reference.removeprefix(PREFIX).split(":")
        reader = Reader(self)
        found = await reader.find(tenant_id, claim_id)
        assert found is not None, f"{reference} leads nowhere"
        return b"".join([piece async for piece in reader.pieces(found, 0, found.length)])
