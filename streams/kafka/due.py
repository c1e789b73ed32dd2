"""Due rows of every owned partition as one (spec 03 "Windows, slots, fairness"): a tenant has one turn in a node.

Each partition keeps its own index (`ankusa.store.due.DueIndex`); this knows in which of them a tenant has due rows, and
takes its page from them in turn, so that a tenant in many partitions gets one tenant's share and a deep partition does
not hide another. A call costs a step for each partition and for what came due since the last one, whatever waits.
Partitions come and go while it runs. One that is stalled, where outcomes are not folded, hands nothing out: its rows
would be claimed until all windows are full of them. Owns whose turn it is; never reads a row and never claims one.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator

from ankusa.store.due import DueIndex
from ankusa.store.errors import StoreError
from streams.kafka.places import partition_of


class FleetDue:
    """Implements `ankusa.dispatch.ports.Due` for one class of rows."""

    def __init__(self) -> None:
        self._indexes: dict[int, DueIndex] = {}
        # Tenants with due rows, in turn order, and the partitions where each has them, in turn order too.
        self._turn: OrderedDict[str, None] = OrderedDict()
        self._places: dict[str, OrderedDict[int, None]] = {}
        self._aside: set[str] = set()
        self._stalled: set[int] = set()

    def add(self, partition: int, index: DueIndex) -> None:
        """A partition is owned from now on, or its store was opened again. Tenants that are set aside are so there
        too."""
        self.remove(partition)
        for tenant_id in self._aside:
            index.set_aside(tenant_id)
        self._indexes[partition] = index

    def remove(self, partition: int) -> None:
        """A partition's rows are handed out no more."""
        self._stalled.discard(partition)
        if self._indexes.pop(partition, None) is not None:
            self._pass_over(partition)

    def stall(self, partition: int) -> None:
        """Hand out no rows of a partition until it goes on."""
        self._stalled.add(partition)
        self._pass_over(partition)

    def go_on(self, partition: int) -> None:
        self._stalled.discard(partition)

    def _pass_over(self, partition: int) -> None:
        for tenant_id in [tenant for tenant, places in self._places.items() if partition in places]:
            self._leave(tenant_id, partition)

    def _going(self) -> Iterator[tuple[int, DueIndex]]:
        return ((number, index) for number, index in self._indexes.items() if number not in self._stalled)

    def turn(self, at: int) -> OrderedDict[str, None]:
        for partition, index in self._going():
            self._enter(partition, index.turn(at))
        return self._turn

    def _enter(self, partition: int, inner: OrderedDict[str, None]) -> None:
        """Take over the tenants that came due in a partition: an index adds them behind those it has."""
        fresh = []
        for tenant_id in reversed(inner):
            if partition in self._places.get(tenant_id, ()):
                break
            fresh.append(tenant_id)
        for tenant_id in reversed(fresh):
            self._places.setdefault(tenant_id, OrderedDict())[partition] = None
            self._turn.setdefault(tenant_id)

    def _leave(self, tenant_id: str, partition: int) -> None:
        places = self._places.get(tenant_id)
        if places is None:
            return
        places.pop(partition, None)
        if not places:
            del self._places[tenant_id]
            self._turn.pop(tenant_id, None)

    def page(
        self, tenant_id: str, at: int, limit: int, wanted: Callable[[int, int], bool]
    ) -> list[tuple[int, int, int]]:
        """Up to `limit` `(due_at, seq, sink)` of a tenant in the turn, from its partitions in turn.

        Raises StoreError when the first of them cannot be read; it goes to the back, so that the others are served.
        """
        found: list[tuple[int, int, int]] = []
        for partition in list(self._places.get(tenant_id, ())):
            index = self._indexes[partition]
            self._places[tenant_id].move_to_end(partition)
            try:
                found += index.page(tenant_id, at, limit - len(found), wanted)
            except StoreError:
                if found:  # what others gave is claimed first: the next page begins here
                    self._places[tenant_id].move_to_end(partition, last=False)
                    break
                raise
            if tenant_id not in index.turn(at):
                self._leave(tenant_id, partition)
            if len(found) >= limit:
                break
        return found

    def give_back(self, tenant_id: str, due_at: int, seq: int, sink: int) -> None:
        """A row that a page handed out was not claimed, or is no longer. One of a partition that has gone is due where
        that is now."""
        index = self._indexes.get(partition_of(seq))
        if index is not None:
            index.give_back(tenant_id, due_at, seq, sink)

    def set_aside(self, tenant_id: str) -> None:
        self._aside.add(tenant_id)
        for index in self._indexes.values():
            index.set_aside(tenant_id)
        self._places.pop(tenant_id, None)
        self._turn.pop(tenant_id, None)

    def take_back(self, tenant_id: str) -> bool:
        if tenant_id not in self._aside:  # the usual case, at every outcome
            return False
        self._aside.remove(tenant_id)
        for index in self._indexes.values():
            index.take_back(tenant_id)
        return True

    def oldest_due_at(self, at: int) -> int | None:
        times = (index.oldest_due_at(at) for index in self._indexes.values())
        return min((time for time in times if time is not None), default=None)

    def next_due_at(self) -> int | None:
        times = (index.next_due_at() for _, index in self._going())
        return min((time for time in times if time is not None), default=None)
