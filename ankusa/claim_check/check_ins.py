"""Checking bodies in: one reference a hook, kept with it, before its sinks run (spec 03 "Claim check").

The bodies of one scan are packed per tenant and stored together, beside the dispatcher, which waits for nothing: only
the rows of those hooks wait, until their pack is stored, refused or late. An attempt whose body still has no reference
then checks it in itself. Owns the check-ins under way and who waits for them; never starts an attempt, never touches a
row.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Protocol

from msgspec import Struct

from ankusa.claim_check import pack as packs
from ankusa.claim_check import reference as references
from ankusa.claim_check.blobs import BlobError, BlobStore
from ankusa.claim_check.stats import ClaimCheckStats
from ankusa.store.errors import StoreError
from schemas.records import CheckIn, DecodeError, Envelope

log = logging.getLogger("ankusa.claim_check")

STORE_MS = 10_000
"""The longest a store may take over a pack: 16 MiB at 1.6 MiB a second. Rows wait for it once, and no longer."""

REST_MS = 5000
"""No pack is begun for this long after one was refused: while the store is away rows must not wait for it at each
claim. Attempts go on checking in their own bodies, and the first that succeeds ends the rest."""

CANCEL_MS = 1000
"""How long a stop waits for check-ins that it cancelled."""


class CheckInError(Exception):
    """A body was not checked in: worth another attempt."""


class CheckInHost(Protocol):
    """The hooks and the log of one node."""

    @property
    def partition_of(self) -> Callable[[int], int] | None:
        """The partition of a hook's seq; None where there is but one. A pack is of one partition."""

    def hook(self, seq: int) -> tuple[Envelope, bytes] | None:
        """Raises StoreError or one of `records.DecodeError`."""

    def checked_in(self, seq: int) -> tuple[str, int] | None:
        """`(pack, position)` of a body that is in the blob store. Raises StoreError."""

    async def check_in(self, record: CheckIn) -> None:
        """Append and fold a check-in, durably. Raises StoreError."""


class _Hold(Struct):
    """A hook whose rows wait for its pack: how large its body must be to go into one."""

    seq: int
    size_bytes: int
    over_bytes: int


class CheckIns:
    """The check-ins of one dispatcher. `clock` gives log time in unix ms, `draw` 64 bits that nobody can guess."""

    def __init__(
        self,
        host: CheckInHost,
        blobs: BlobStore,
        pack_max_bytes: int,
        clock: Callable[[], int],
        draw: Callable[[], int],
    ) -> None:
        self._host = host
        self._blobs = blobs
        self._pack_max_bytes = pack_max_bytes
        self._clock = clock
        self._draw = draw
        self._loop = asyncio.get_running_loop()
        self.stats = ClaimCheckStats()
        # Who waits for a hook's pack, by seq; what the packs that are about to begin are of, by tenant.
        self._waiting: dict[int, list[Callable[[], None]]] = {}
        self._held: dict[str, list[_Hold]] = {}
        self._own: dict[int, asyncio.Task[None]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._rests_until = 0
        self._closed = False

    # -- the packs of a scan --------------------------------------------------------

    def hold(self, seq: int, tenant_id: str, size_bytes: int, over_bytes: int, release: Callable[[], None]) -> bool:
        """Whether a row has to wait for its hook's pack. If so, `release` is called when that has ended, either way.

        `size_bytes` is of the stored hook; its body is checked in when it is larger than `over_bytes`. All that is held
        before the loop goes on, as the rows of one scan are, goes into the same packs.
        """
        waiting = self._waiting.get(seq)
        if waiting is not None:
            waiting.append(release)
            return True
        if self._clock() < self._rests_until or seq in self._own or self._closed:
            return False
        try:
            if self._host.checked_in(seq) is not None:
                return False
        except StoreError:
            return False  # its attempt will meet the same, and has a row to tell it to
        self._waiting[seq] = [release]
        if not self._held:
            self._loop.call_soon(self._start)
        self._held.setdefault(tenant_id, []).append(_Hold(seq, size_bytes, over_bytes))
        return True

    def _start(self) -> None:
        held, self._held = self._held, {}
        for tenant_id, holds in held.items():
            for part in self._by_partition(holds):
                for group in _groups(part, self._pack_max_bytes):
                    if not self._closed:
                        self._keep(self._loop.create_task(self._pack(tenant_id, group)))

    def _by_partition(self, holds: list[_Hold]) -> Iterable[list[_Hold]]:
        partition_of = self._host.partition_of
        if partition_of is None:
            return (holds,)
        parts: dict[int, list[_Hold]] = {}
        for hold in holds:
            parts.setdefault(partition_of(hold.seq), []).append(hold)
        return parts.values()

    async def _pack(self, tenant_id: str, holds: list[_Hold]) -> None:
        try:
            bodies = await self._bodies(holds)
            if bodies:
                await self._store(tenant_id, bodies)
        except CheckInError as error:
            if self._clock() >= self._rests_until:
                log.warning("event=pack_refused tenant=%s bodies=%d reason=%s", tenant_id, len(holds), error)
            self._rests_until = self._clock() + REST_MS
        except Exception:
            log.exception("event=pack_failed tenant=%s", tenant_id)
        for hold in holds:
            for release in self._waiting.pop(hold.seq):
                release()

    async def _bodies(self, holds: Sequence[_Hold]) -> list[tuple[int, bytes]]:
        """The bodies to store. One that cannot be read is left to its attempts; the loop goes on between any two."""
        found = []
        for hold in holds:
            try:
                hook = self._host.hook(hold.seq)
            except (StoreError, *DecodeError):
                continue
            if hook is not None and len(hook[1]) > hold.over_bytes:
                found.append((hold.seq, hook[1]))
            await asyncio.sleep(0)
        return found

    # -- an attempt's own body ------------------------------------------------------

    async def reference(self, seq: int, tenant_id: str, body: bytes) -> str:
        """The reference of a hook's body, which is checked in when it has none. Raises CheckInError.

        Attempts of one hook share a check-in, and it goes on when they are cancelled.
        """
        found = self._known(seq)
        if found is None:
            running = self._own.get(seq)
            if running is None:
                running = self._loop.create_task(self._store(tenant_id, [(seq, body)]))
                self._own[seq] = running
                running.add_done_callback(lambda _: self._own.pop(seq, None))
                self._keep(running)
            await asyncio.shield(running)
            found = self._known(seq)
        if found is None:
            raise CheckInError("its record left no reference")
        return references.reference(tenant_id, *found)

    def _known(self, seq: int) -> tuple[str, int] | None:
        try:
            return self._host.checked_in(seq)
        except StoreError as error:
            raise CheckInError(str(error)) from error

    # -- storing ----------------------------------------------------------------------

    async def _store(self, tenant_id: str, bodies: Sequence[tuple[int, bytes]]) -> None:
        """Store bodies `(seq, body)` as one pack within `STORE_MS`, whatever the store does. Raises CheckInError."""
        task = self._loop.create_task(self._put(tenant_id, bodies))
        task.add_done_callback(_look)
        try:
            done, _ = await asyncio.wait({task}, timeout=STORE_MS / 1000)
        finally:
            task.cancel()
        if not done:
            reason = f"the store did not answer within {STORE_MS} ms"
        elif task.cancelled():
            reason = "the store cancelled it"
        elif (error := task.exception()) is not None:
            reason = str(error) if isinstance(error, BlobError | StoreError) else f"it raised {type(error).__name__}"
        else:
            self._rests_until = 0
            return
        self.stats.failed += 1
        raise CheckInError(reason)

    async def _put(self, tenant_id: str, bodies: Sequence[tuple[int, bytes]]) -> None:
        at = self._clock()
        pack = references.pack_id(at, self._draw())
        parts = [packs.head([len(body) for _, body in bodies]), *(body for _, body in bodies)]
        await self._blobs.put(tenant_id, pack, parts)
        await self._host.check_in(CheckIn(tenant_id, pack, at, tuple(seq for seq, _ in bodies)))
        self.stats.packs += 1
        self.stats.bodies += len(bodies)
        self.stats.stored_bytes += sum(map(len, parts))

    def _keep(self, task: asyncio.Task[None]) -> None:
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(_look)

    async def close(self) -> None:
        """End every check-in under way, and begin no more; nobody is released. Rows that waited are due at the next
        start."""
        self._closed = True
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=CANCEL_MS / 1000)


def _look(task: asyncio.Task[None]) -> None:
    """Nobody may be left to take a task's exception: without a look the loop would complain of it."""
    if not task.cancelled():
        task.exception()


def _groups(holds: Sequence[_Hold], max_bytes: int) -> Iterator[list[_Hold]]:
    """Packs of up to `max_bytes`, in order; a body larger than that is a pack of its own."""
    group: list[_Hold] = []
    size_bytes = 0
    for hold in holds:
        if group and (size_bytes + hold.size_bytes > max_bytes or len(group) == references.MAX_BODIES):
            yield group
            group, size_bytes = [], 0
        group.append(hold)
        size_bytes += hold.size_bytes
    if group:
        yield group
