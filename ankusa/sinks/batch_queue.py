"""What waits in a batcher: bounded as a whole and per tenant, taken in turns over the tenants.

Pure: entries in, entries out. It knows no clock, sends nothing and answers nobody; `batcher.py` does.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from typing import Generic, Protocol, TypeVar

from msgspec import Struct


class QueueLimits(Struct, frozen=True):
    """Bounds of one queue. One tenant may hold at most half of either."""

    entries: int
    size_bytes: int


# Far above what the default windows let wait (4,096 rows, 128 MiB of hooks): those are meant to be the bound, and this
# one to hold when they were raised. At the worst a destination that hangs keeps this much in memory.
QUEUE_LIMITS = QueueLimits(10_000, 268_435_456)


class Waiting(Protocol):
    """What can wait here: whose it is, and what it weighs in a request."""

    @property
    def tenant(self) -> str: ...
    @property
    def size_bytes(self) -> int: ...


E = TypeVar("E", bound=Waiting)


class _Line(Generic[E]):
    """One tenant's entries in the order they came."""

    __slots__ = ("entries", "size_bytes")

    def __init__(self) -> None:
        self.entries: OrderedDict[int, E] = OrderedDict()  # by id(): taken from either end, or out of the middle
        self.size_bytes = 0


class BatchQueue(Generic[E]):
    """Entries that wait. `len()` counts them, `size_bytes` weighs them. Adding to a full queue costs a walk over the
    tenants in it; everything else costs the same however many wait."""

    def __init__(self, limits: QueueLimits = QUEUE_LIMITS) -> None:
        self._limits = limits
        self._lines: OrderedDict[str, _Line[E]] = OrderedDict()  # the tenant whose turn it is comes first
        self._count = 0
        self.size_bytes = 0

    def __len__(self) -> int:
        return self._count

    def add(self, entry: E) -> E | None:
        """Take an entry in. The answer is the one that has no place: None, `entry` itself, or another tenant's newest.

        When the queue is full, a tenant that holds less than the one that holds most takes the place of that one's
        newest entry, so that no tenant keeps the others out.
        """
        line = self._lines.get(entry.tenant) or _Line()
        count, size_bytes = len(line.entries) + 1, line.size_bytes + entry.size_bytes
        if self._over(2 * count, 2 * size_bytes):
            return entry
        displaced = None
        if self._over(self._count + 1, self.size_bytes + entry.size_bytes):
            displaced = self._displaceable(entry, count, size_bytes)
            if displaced is None:
                return entry
            self.discard(displaced)
        self._lines.setdefault(entry.tenant, line)
        line.entries[id(entry)] = entry
        line.size_bytes = size_bytes
        self._count += 1
        self.size_bytes += entry.size_bytes
        return displaced

    def discard(self, entry: E) -> bool:
        """Take an entry out that waits; False when it does not any more."""
        line = self._lines.get(entry.tenant)
        if line is None or id(entry) not in line.entries:
            return False
        self._remove(line, entry)
        return True

    def take(self, max_entries: int, max_bytes: int) -> list[E]:
        """The next batch: one entry of each tenant in turn, as many as fit. One that alone is too big goes alone."""
        batch: list[E] = []
        size_bytes = 0
        while self._lines and len(batch) < max_entries:
            tenant, line = next(iter(self._lines.items()))
            entry = next(iter(line.entries.values()))
            if batch and size_bytes + entry.size_bytes > max_bytes:
                break  # it is the first of the next batch, so a big one is not passed over again and again
            self._lines.move_to_end(tenant)
            self._remove(line, entry)
            batch.append(entry)
            size_bytes += entry.size_bytes
        return batch

    def drain(self) -> Iterator[E]:
        """Everything that waits, out of the queue."""
        while batch := self.take(1, 0):
            yield batch[0]

    def _over(self, count: int, size_bytes: int) -> bool:
        return count > self._limits.entries or size_bytes > self._limits.size_bytes

    def _displaceable(self, entry: E, count: int, size_bytes: int) -> E | None:
        """Whose place `entry` may take when its tenant would then hold `count` entries of `size_bytes`."""
        by_count = self._count >= self._limits.entries

        def holds(line: _Line[E]) -> int:
            return len(line.entries) if by_count else line.size_bytes

        most = max(self._lines.values(), key=holds)
        newest = next(reversed(most.entries.values()))
        fair = newest.tenant != entry.tenant and holds(most) > (count if by_count else size_bytes)
        fits = not self._over(self._count, self.size_bytes - newest.size_bytes + entry.size_bytes)
        return newest if fair and fits else None

    def _remove(self, line: _Line[E], entry: E) -> None:
        del line.entries[id(entry)]
        line.size_bytes -= entry.size_bytes
        self._count -= 1
        self.size_bytes -= entry.size_bytes
        if not line.entries:
            del self._lines[entry.tenant]
