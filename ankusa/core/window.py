"""The window: the budget of claimed, unfinished rows, global and per tenant (spec 03).

Counts only; it never decides who goes next (`fairness`) nor starts anything (`slots`).
"""

from __future__ import annotations

from msgspec import Struct


class Limits(Struct, frozen=True):
    """At most `rows` claimed rows and `size_bytes` of stored hook."""

    rows: int
    size_bytes: int


REPLAY_SHARE = 4
"""Replayed rows may hold a quarter of a window: enough to keep every slot busy, while live ones have the rest."""


def replay_part(limits: Limits) -> Limits:
    """How much of a window replayed rows may hold, at least a row."""
    return Limits(max(1, limits.rows // REPLAY_SHARE), max(1, limits.size_bytes // REPLAY_SHARE))


FREE_SHARE = 15
"""A tenant may hold fifteen times the rows, and the bytes, that are free in the whole window. So one alone takes
fifteen sixteenths of it, ten take all but a 151st, and however many of them hang there is room for whoever comes next.
A window of up to sixteen rows is one tenant's to fill."""


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
    """Claimed rows by tenant under a global budget; replayed rows have a part of each, so that a replay never fills the
    window, the whole one or its tenant's, that the next live hook needs."""

    def __init__(self, limits: Limits, tenants: dict[str, Limits], default: Limits) -> None:
        self.reconfigure(limits, tenants, default)
        self.used = Used()
        self.replay_used = Used()
        self._tenants: dict[str, Used] = {}
        self._tenant_replays: dict[str, Used] = {}

    def reconfigure(self, limits: Limits, tenants: dict[str, Limits], default: Limits) -> None:
        """New budgets. What is claimed stays claimed; a lowered one only stops the next claim."""
        self.limits = limits
        self.replay_limits = replay_part(limits)
        self.tenant_limits = tenants
        self.default_limits = default

    def room(self, *, replayed: bool) -> bool:
        """Whether any row may be claimed."""
        return self.used.room(self.limits) and (not replayed or self.replay_used.room(self.replay_limits))

    def free_rows(self) -> int:
        """How many more rows the count allows, bytes aside."""
        return self.limits.rows - self.used.rows

    def tenant_room(self, tenant_id: str, *, replayed: bool) -> bool:
        """Whether a row of this tenant may be claimed, global budget aside."""
        limits = self._limits_of(tenant_id)
        used = self._tenants.get(tenant_id)
        if used is not None and not (used.room(limits) and self._leaves_room(used)):
            return False
        replays = self._tenant_replays.get(tenant_id) if replayed else None
        return replays is None or replays.room(replay_part(limits))

    def rows_left(self, tenant_id: str, *, replayed: bool) -> int:
        """How many more rows of this tenant the counts allow, bytes aside: no page need be longer."""
        limits = self._limits_of(tenant_id)
        free, held = self.free_rows(), self.tenant_rows(tenant_id)
        left = min(free, limits.rows - held, (FREE_SHARE * free - held) // (FREE_SHARE + 1) + 1)
        if not replayed:
            return left
        replays = self._tenant_replays.get(tenant_id)
        tenant_left = replay_part(limits).rows - (replays.rows if replays else 0)
        return min(left, tenant_left, self.replay_limits.rows - self.replay_used.rows)

    def claim(self, tenant_id: str, size_bytes: int, *, replayed: bool) -> None:
        for used in self._parts(tenant_id, replayed):
            used.rows += 1
            used.size_bytes += size_bytes

    def finish(self, tenant_id: str, size_bytes: int, *, replayed: bool) -> None:
        for used in self._parts(tenant_id, replayed):
            used.rows -= 1
            used.size_bytes -= size_bytes
        for tenants in (self._tenants, self._tenant_replays):
            if tenant_id in tenants and tenants[tenant_id].rows == 0:
                del tenants[tenant_id]

    def tenant_rows(self, tenant_id: str) -> int:
        used = self._tenants.get(tenant_id)
        return used.rows if used else 0

    def _leaves_room(self, used: Used) -> bool:
        """Whether a tenant that holds `used` may have more of what is free, and leave room for the others."""
        free_bytes = max(0, self.limits.size_bytes - self.used.size_bytes)
        return used.rows <= FREE_SHARE * self.free_rows() and used.size_bytes <= FREE_SHARE * free_bytes

    def _limits_of(self, tenant_id: str) -> Limits:
        return self.tenant_limits.get(tenant_id, self.default_limits)

    def _parts(self, tenant_id: str, replayed: bool) -> tuple[Used, ...]:
        tenant = self._tenants.get(tenant_id)
        if tenant is None:
            tenant = self._tenants[tenant_id] = Used()
        if not replayed:
            return self.used, tenant
        replays = self._tenant_replays.get(tenant_id)
        if replays is None:
            replays = self._tenant_replays[tenant_id] = Used()
        return self.used, tenant, self.replay_used, replays
