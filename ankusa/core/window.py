"""The window: the budget of claimed, unfinished rows, global and per tenant (spec 03).

Counts only; it never decides who goes next (`fairness`) nor starts anything (`slots`).
"""

from __future__ import annotations

from msgspec import Struct


class Limits(Struct, frozen=True):
    """At most `rows` claimed rows and `size_bytes` of stored hook."""

    rows: int
    size_bytes: int


class Used:
    """What is claimed now, of one window."""

    __slots__ = ("rows", "size_bytes")

    def __init__(self) -> None:
        self.rows = 0
        self.size_bytes = 0

    def room(self, limits: Limits) -> bool:
        """Whether one more row may be claimed. The last one may overshoot the bytes: a row larger than the
        whole window must still go, so only what is claimed already is compared."""
        return self.rows < limits.rows and (self.size_bytes < limits.size_bytes or self.rows == 0)


class Window:
    """Claimed rows by tenant under a global budget; replayed rows have a smaller budget inside it.

    `replay_limits` keeps a replay from filling the window that the next live hook needs.
    """

    def __init__(self, limits: Limits, replay_limits: Limits, tenants: dict[str, Limits], default: Limits) -> None:
        self.reconfigure(limits, replay_limits, tenants, default)
        self.used = Used()
        self.replay_used = Used()
        self._tenants: dict[str, Used] = {}

    def reconfigure(self, limits: Limits, replay_limits: Limits, tenants: dict[str, Limits], default: Limits) -> None:
        """New budgets. What is claimed stays claimed; a lowered one only stops the next claim."""
        self.limits = limits
        self.replay_limits = replay_limits
        self.tenant_limits = tenants
        self.default_limits = default

    def room(self, *, replayed: bool) -> bool:
        """Whether any row may be claimed."""
        return self.used.room(self.limits) and (not replayed or self.replay_used.room(self.replay_limits))

    def tenant_room(self, tenant_id: str) -> bool:
        """Whether a row of this tenant may be claimed, global budget aside."""
        used = self._tenants.get(tenant_id)
        return used is None or used.room(self.tenant_limits.get(tenant_id, self.default_limits))

    def rows_left(self, tenant_id: str, *, replayed: bool) -> int:
        """How many more rows of this tenant the counts allow, bytes aside: no page need be longer."""
        left = self.limits.rows - self.used.rows
        tenant = self._tenants.get(tenant_id)
        limits = self.tenant_limits.get(tenant_id, self.default_limits)
        left = min(left, limits.rows - (tenant.rows if tenant else 0))
        return min(left, self.replay_limits.rows - self.replay_used.rows) if replayed else left

    def claim(self, tenant_id: str, size_bytes: int, *, replayed: bool) -> None:
        for used in self._parts(tenant_id, replayed):
            used.rows += 1
            used.size_bytes += size_bytes

    def finish(self, tenant_id: str, size_bytes: int, *, replayed: bool) -> None:
        for used in self._parts(tenant_id, replayed):
            used.rows -= 1
            used.size_bytes -= size_bytes
        if self._tenants[tenant_id].rows == 0:
            del self._tenants[tenant_id]

    def tenant_rows(self, tenant_id: str) -> int:
        used = self._tenants.get(tenant_id)
        return used.rows if used else 0

    def _parts(self, tenant_id: str, replayed: bool) -> tuple[Used, ...]:
        tenant = self._tenants.get(tenant_id)
        if tenant is None:
            tenant = self._tenants[tenant_id] = Used()
        return (self.used, tenant, self.replay_used) if replayed else (self.used, tenant)
