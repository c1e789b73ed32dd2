"""Who starts next: claimed rows wait in one queue per sink key, and free slots go round (spec 03).

Round-robin over tenants, then over the tenant's sink keys with work; live rows before replayed ones. Caps: all
attempts, each tenant's, each sink key's. Replayed rows leave a quarter of the slots, of each tenant's and of each sink
key's cap alone, so that a live hook never waits for a replayed one to end. Owns the order; never runs anything.

A tenant may have fifteen times the slots that are free, so one whose sinks all hang leaves some for the others.

Every operation is O(1) in waiting rows, tenants and sink keys: a turn holds only what may start, and a tenant
or sink key at its cap is out of it until one of its attempts ends. Of tenants that have more than their part of what is
free there is at most one for sixteen slots.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable
from typing import Generic, TypeVar

from msgspec import Struct

from ankusa.core.window import FREE_SHARE

Item = TypeVar("Item")


class Caps(Struct, frozen=True):
    """Attempts at once: in all, of one sink key (None: no cap), of one tenant."""

    total: int
    per_sink: int | None
    per_tenant: dict[str, int]
    default_tenant: int


def replay_share(cap: int) -> int:
    """How much of a cap replayed rows may take: three quarters, at least one."""
    return max(1, cap * 3 // 4)


class _Line(Generic[Item]):
    """The queues of one class of rows (live, or replayed) and whose turn it is in it."""

    __slots__ = ("keys", "queues", "tenants")

    def __init__(self) -> None:
        self.queues: dict[str, deque[Item]] = {}
        # Sink keys with work and room by tenant, and tenants with such keys and room; order is the turn.
        self.keys: dict[str, OrderedDict[str, None]] = {}
        self.tenants: OrderedDict[str, None] = OrderedDict()

    def refresh(self, tenant_id: str, key: str, *, room: bool, tenant_room: bool) -> None:
        """Put a sink key and its tenant into or out of the turn: `room` under the key's cap, `tenant_room` under the
        tenant's."""
        keys = self.keys.get(tenant_id)
        if room and key in self.queues:
            if keys is None:
                keys = self.keys[tenant_id] = OrderedDict()
            keys.setdefault(key)
        elif keys is not None and key in keys:
            del keys[key]
            if not keys:
                del self.keys[tenant_id]
                keys = None
        if tenant_room and keys is not None:
            self.tenants.setdefault(tenant_id)
        elif tenant_id in self.tenants:
            del self.tenants[tenant_id]

    def pop(self, may_have: Callable[[str], bool]) -> tuple[str, str, Item] | None:
        """The first row of the tenant and sink key whose turn it is; both go to the back. A tenant that may not have
        what is free is passed over."""
        tenant_id = next((tenant_id for tenant_id in self.tenants if may_have(tenant_id)), None)
        if tenant_id is None:
            return None
        keys = self.keys[tenant_id]
        key = next(iter(keys))
        queue = self.queues[key]
        item = queue.popleft()
        if not queue:
            del self.queues[key]
        self.tenants.move_to_end(tenant_id)
        keys.move_to_end(key)
        return tenant_id, key, item


class Slots(Generic[Item]):
    """Queues and running counts. `Item` is the caller's claim; a sink key's text names its tenant first."""

    def __init__(self, caps: Caps) -> None:
        self.caps = caps
        self.running = 0
        self.replays_running = 0
        self.waiting = 0
        self._tenant_of: dict[str, str] = {}
        self._by_sink: dict[str, int] = {}
        self._replays_by_sink: dict[str, int] = {}
        self._by_tenant: dict[str, int] = {}
        self._replays_by_tenant: dict[str, int] = {}
        self._live: _Line[Item] = _Line()
        self._replayed: _Line[Item] = _Line()

    def reconfigure(self, caps: Caps) -> None:
        """New caps. Running attempts go on; a lowered cap only stops the next start."""
        self.caps = caps
        for key, tenant_id in list(self._tenant_of.items()):
            self._refresh(tenant_id, key)

    def offer(self, tenant_id: str, key: str, item: Item, *, replayed: bool) -> None:
        """Queue a claimed row behind its sink key's others."""
        line = self._replayed if replayed else self._live
        queue = line.queues.get(key)
        if queue is None:
            queue = line.queues[key] = deque()
        queue.append(item)
        self.waiting += 1
        if len(queue) == 1:
            self._tenant_of[key] = tenant_id
            self._refresh(tenant_id, key)

    def next(self) -> Item | None:
        """The row to start now, counted as running; None when nothing may start."""
        if self.running >= self.caps.total:
            return None
        taken = self._live.pop(self._may_have)
        replayed = taken is None
        if taken is None and self.replays_running < replay_share(self.caps.total):
            taken = self._replayed.pop(self._may_have)
        if taken is None:
            return None
        tenant_id, key, item = taken
        line = self._replayed if replayed else self._live
        self._count(tenant_id, key, 1, replayed=replayed)
        self.waiting -= 1
        if replayed or key not in line.queues or self._is_at_cap(tenant_id, key):
            self._refresh(tenant_id, key)
        return item

    def done(self, tenant_id: str, key: str, *, replayed: bool) -> None:
        """A started row's attempt has ended or was given up."""
        was_at_cap = self._is_at_cap(tenant_id, key)
        self._count(tenant_id, key, -1, replayed=replayed)
        if was_at_cap or replayed or self._replayed.queues or key not in self._by_sink:
            self._refresh(tenant_id, key)

    def _is_at_cap(self, tenant_id: str, key: str) -> bool:
        """Whether this sink key or its tenant may start no more. Counts below their caps change nobody's turn, and a
        turn that is not changed need not be worked out."""
        caps = self.caps
        return (caps.per_sink is not None and self._by_sink.get(key, 0) >= caps.per_sink) or (
            self._by_tenant.get(tenant_id, 0) >= caps.per_tenant.get(tenant_id, caps.default_tenant)
        )

    def take(self, key: str) -> list[Item]:
        """Take every waiting row of one sink key out: its breaker has opened."""
        tenant_id = self._tenant_of.get(key)
        if tenant_id is None:
            return []
        items = [item for line in (self._live, self._replayed) for item in line.queues.pop(key, ())]
        self.waiting -= len(items)
        self._refresh(tenant_id, key)
        return items

    def withdraw(self, unwanted: Callable[[Item], bool]) -> list[Item]:
        """Take the waiting rows out that `unwanted` names; the others keep their order."""
        taken: list[Item] = []
        for line in (self._live, self._replayed):
            for key, queue in list(line.queues.items()):
                found = [item for item in queue if unwanted(item)]
                if not found:
                    continue
                taken += found
                left = deque(item for item in queue if not unwanted(item))
                if left:
                    line.queues[key] = left
                else:
                    del line.queues[key]
                self._refresh(self._tenant_of[key], key)
        self.waiting -= len(taken)
        return taken

    def drain(self) -> list[Item]:
        """Take every waiting row out, in no order: a stop gives them back."""
        items = [item for line in (self._live, self._replayed) for queue in line.queues.values() for item in queue]
        self._live, self._replayed = _Line(), _Line()
        self.waiting = 0
        return items

    def depth(self) -> dict[str, int]:
        """Waiting rows by sink key."""
        depths: dict[str, int] = {}
        for line in (self._live, self._replayed):
            for key, queue in line.queues.items():
                depths[key] = depths.get(key, 0) + len(queue)
        return depths

    def running_by_sink(self) -> dict[str, int]:
        return dict(self._by_sink)

    def _may_have(self, tenant_id: str) -> bool:
        """Whether a tenant leaves others something of the free slots, as it does of the window."""
        return self._by_tenant.get(tenant_id, 0) <= FREE_SHARE * (self.caps.total - self.running)

    def _count(self, tenant_id: str, key: str, change: int, *, replayed: bool) -> None:
        self.running += change
        _add(self._by_sink, key, change)
        _add(self._by_tenant, tenant_id, change)
        if replayed:
            self.replays_running += change
            _add(self._replays_by_sink, key, change)
            _add(self._replays_by_tenant, tenant_id, change)

    def _refresh(self, tenant_id: str, key: str) -> None:
        """Put the sink key and its tenant into or out of each class's turn, as their counts now say."""
        caps, running = self.caps, self._by_sink.get(key, 0)
        room = caps.per_sink is None or running < caps.per_sink
        tenant_cap = caps.per_tenant.get(tenant_id, caps.default_tenant)
        tenant_room = self._by_tenant.get(tenant_id, 0) < tenant_cap
        self._live.refresh(tenant_id, key, room=room, tenant_room=tenant_room)
        if self._replayed.queues or self._replayed.keys:
            replays = self._replays_by_sink.get(key, 0)
            room = room and (caps.per_sink is None or replays < replay_share(caps.per_sink))
            tenant_room = tenant_room and self._replays_by_tenant.get(tenant_id, 0) < replay_share(tenant_cap)
            self._replayed.refresh(tenant_id, key, room=room, tenant_room=tenant_room)
        if not running and key not in self._live.queues and key not in self._replayed.queues:
            self._tenant_of.pop(key, None)


def _add(counts: dict[str, int], key: str, change: int) -> None:
    left = counts.get(key, 0) + change
    if left:
        counts[key] = left
    else:
        del counts[key]
