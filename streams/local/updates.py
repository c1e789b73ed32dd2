"""Telling the edges what the API set up: whole when one connects, each change at once, and who has taken it.

A change is answered to its caller only when every connected edge goes by it, or has had `TAKEN_MS`: after a 201 the
next hook for the new source is accepted. Owns the versions and the waiting; what an edge does with an update is the
edge's.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Protocol

from schemas.edge_update import EdgeUpdate, encode_update

log = logging.getLogger("ankusa.engine")

TAKEN_MS = 1000
"""An edge takes an update in milliseconds. One that does not within this is stuck, and will be told again when it has
reconnected; whoever waits is not kept for its sake."""

_VERSIONS = 1 << 32


class Peer(Protocol):
    """A connected edge."""

    def send_update(self, version: int, payload: bytes) -> None: ...


class Updates:
    """One engine's edges. `whole` gives everything an edge must know now."""

    def __init__(self, whole: Callable[[], EdgeUpdate]) -> None:
        self._whole = whole
        self._version = 0
        self._peers: dict[Peer, dict[int, asyncio.Future[None]]] = {}
        self._inside: list[Callable[[EdgeUpdate], None]] = []

    def attach(self, take: Callable[[EdgeUpdate], None]) -> None:
        """An edge in this process: it is told everything now, and each change."""
        take(self._whole())
        self._inside.append(take)

    def joined(self, peer: Peer) -> None:
        """An edge has connected."""
        self._peers[peer] = {}
        peer.send_update(self._next(), encode_update(self._whole()))

    def left(self, peer: Peer) -> None:
        """Its connection is lost: nobody waits for it any more."""
        for taken in self._peers.pop(peer, {}).values():
            _done(taken)

    def taken(self, peer: Peer, version: int) -> None:
        """An edge goes by this version."""
        taken = self._peers.get(peer, {}).pop(version, None)
        if taken is not None:
            _done(taken)

    async def push(self, update: EdgeUpdate) -> None:
        """Tell every edge of a change and wait until they go by it, `TAKEN_MS` at most."""
        for take in self._inside:
            take(update)
        if not self._peers:
            return
        version, payload = self._next(), encode_update(update)
        waiting: set[asyncio.Future[None]] = set()
        for peer, pending in self._peers.items():
            pending[version] = asyncio.get_running_loop().create_future()
            waiting.add(pending[version])
            peer.send_update(version, payload)
        _, late = await asyncio.wait(waiting, timeout=TAKEN_MS / 1000)
        if late:
            log.warning("event=edges_late version=%d edges=%d", version, len(late))
            for pending in self._peers.values():
                pending.pop(version, None)

    def _next(self) -> int:
        self._version = (self._version + 1) % _VERSIONS
        return self._version


def _done(taken: asyncio.Future[None]) -> None:
    if not taken.done():
        taken.set_result(None)
