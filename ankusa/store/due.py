"""The due index in memory: which tenants have due rows, and where their scan goes on (spec 03).

The due family holds a key per pending row; this holds, per class and tenant, a low-water key (no pending, unclaimed
row lies before it) and the time of the first row from there. So a page starts where the last one ended and never
walks over settled entries, the next wake-up is known without a scan, and tenants that wait cost nothing.

Owns where to look and whose turn it is; never claims a row and never decides how many may be.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Callable

from ankusa.store import keys
from ankusa.store.database import Database


class Head:
    """One tenant's place in a class: `low` is where its next page starts, `due_at` the first row's time there."""

    __slots__ = ("due_at", "low", "tenant_id")

    def __init__(self, tenant_id: str, low: bytes, due_at: int) -> None:
        self.tenant_id = tenant_id
        self.low = low
        self.due_at = due_at


class DueIndex:
    """Due rows of one class (live or replayed) of one database."""

    def __init__(self, database: Database, row_class: int) -> None:
        """Finds the tenants by one seek each: milliseconds for thousands of tenants, once per start."""
        self._database = database
        self._class = row_class
        self._heads: dict[str, Head] = {}
        # Entries may be stale: one counts only while its time is still the tenant's. None is in it twice, or a row far
        # ahead would add one for every hook that passes it.
        self._waiting: list[tuple[int, str]] = []
        self._queued: set[tuple[int, str]] = set()
        # Tenants whose first row is due, in turn order; the front goes first in the next scan.
        self._turn: OrderedDict[str, None] = OrderedDict()
        # Tenants at their window: neither scanned nor woken for, until an outcome frees room.
        self._aside: set[str] = set()
        self._load()

    def _load(self) -> None:
        start, end = bytes((self._class,)), bytes((self._class + 1,))
        while (key := self._database.first_key("due", start, end)) is not None:
            tenant_id = keys.due_tenant(key)
            due_at, _, _ = keys.split_due_key(key)
            self._set(Head(tenant_id, key, due_at))
            start = keys.prefix_end(keys.due_prefix(self._class, tenant_id))

    def _set(self, head: Head) -> None:
        self._heads[head.tenant_id] = head
        self._turn.pop(head.tenant_id, None)
        self._wait(head)

    def _wait(self, head: Head) -> None:
        entry = (head.due_at, head.tenant_id)
        if entry not in self._queued:
            self._queued.add(entry)
            heapq.heappush(self._waiting, entry)

    def _popped(self) -> tuple[int, str]:
        entry = heapq.heappop(self._waiting)
        self._queued.remove(entry)
        return entry

    def added(self, tenant_id: str, due_at: int, key: bytes) -> None:
        """A pending row was stored, or given back unclaimed, under `key`."""
        head = self._heads.get(tenant_id)
        if head is None:
            self._set(Head(tenant_id, key, due_at))
            return
        if key < head.low:
            head.low = key
        if due_at < head.due_at:
            head.due_at = due_at
            if tenant_id not in self._turn:
                self._wait(head)

    def give_back(self, tenant_id: str, due_at: int, seq: int, sink: int) -> None:
        """A row that a page handed out was not claimed, or is no longer."""
        self.added(tenant_id, due_at, keys.due_key(self._class, tenant_id, due_at, seq, sink))

    def turn(self, at: int) -> OrderedDict[str, None]:
        """Tenants with a row due at `at`, in turn order. The caller moves those it serves to the end."""
        while self._waiting and self._waiting[0][0] <= at:
            due_at, tenant_id = self._popped()
            head = self._heads.get(tenant_id)
            if head is not None and head.due_at == due_at and tenant_id not in self._aside:
                self._turn.setdefault(tenant_id)
        return self._turn

    def set_aside(self, tenant_id: str) -> None:
        """Take a tenant that is at its window out of the turn and of the wake-up time."""
        self._aside.add(tenant_id)
        self._turn.pop(tenant_id, None)

    def take_back(self, tenant_id: str) -> bool:
        """Put a tenant that was set aside back; False when it was not."""
        if tenant_id not in self._aside:
            return False
        self._aside.remove(tenant_id)
        head = self._heads.get(tenant_id)
        if head is not None:
            self._wait(head)
        return True

    def page(
        self, tenant_id: str, at: int, limit: int, wanted: Callable[[int, int], bool]
    ) -> list[tuple[int, int, int]]:
        """Up to `limit` `(due_at, seq, sink)` due at `at`, from the low-water key on; moves it past them.

        `wanted` refuses a row that is claimed already. The tenant leaves the turn when nothing due is left.
        """
        head = self._heads[tenant_id]
        prefix = keys.due_prefix(self._class, tenant_id)
        found: list[tuple[int, int, int]] = []
        low = head.low
        following: int | None = None
        scan = self._database.keys("due", low, keys.prefix_end(prefix))
        for key in scan:
            due_at, seq, sink = keys.split_due_key(key)
            if not wanted(seq, sink):
                low = keys.after(key)
                continue
            if due_at > at or len(found) == limit:
                low, following = key, due_at
                break
            found.append((due_at, seq, sink))
            low = keys.after(key)
        scan.close()  # type: ignore[attr-defined]
        self._moved(head, low, following, at)
        return found

    def _moved(self, head: Head, low: bytes, following: int | None, at: int) -> None:
        if following is None:
            del self._heads[head.tenant_id]
            self._turn.pop(head.tenant_id, None)
            return
        head.low, head.due_at = low, following
        if following > at:
            self._turn.pop(head.tenant_id, None)
            self._wait(head)

    def oldest_due_at(self, at: int) -> int | None:
        """The due time of the oldest row due at `at`, None when none is."""
        times = [self._heads[tenant_id].due_at for tenant_id in self.turn(at)]
        aside = (self._heads[tenant_id].due_at for tenant_id in self._aside if tenant_id in self._heads)
        times.extend(due_at for due_at in aside if due_at <= at)
        return min(times, default=None)

    def next_due_at(self) -> int | None:
        """When the next tenant that is not in the turn gets a due row, None when no row waits."""
        while self._waiting:
            due_at, tenant_id = self._waiting[0]
            head = self._heads.get(tenant_id)
            waits = tenant_id not in self._turn and tenant_id not in self._aside
            if head is not None and head.due_at == due_at and waits:
                return due_at
            self._popped()
        return None
