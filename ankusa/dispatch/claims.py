"""Claims: rows taken for an attempt, and the scan that takes them (spec 03 "Windows, slots, fairness").

A scan goes round the tenants with due work in equal shares, within the windows, live rows first; replayed rows only
when no live row that could be claimed is left. Owns which rows are claimed; never runs an attempt.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

from ankusa.core.window import Limits, Window
from ankusa.dispatch.ports import DispatchHost, Due, Place
from ankusa.store.errors import StoreError
from schemas.config import Dispatch
from schemas.records import Row

QUANTUM = 8
"""The least rows a tenant is asked for in its turn. A page costs a seek (some 20 us): fewer rows would not repay it."""


class Claim:
    """One claimed row on its way: queued, then running, then settled. One that is `gone` was given up: its row is
    another node's."""

    __slots__ = (
        *("checking_in", "gone", "held", "key", "probe", "replayed", "row", "seq", "settled", "sink", "slotted"),
        *("started_at", "task", "timer"),
    )

    def __init__(self, seq: int, sink: int, row: Row) -> None:
        self.seq = seq
        self.sink = sink
        self.row = row
        self.replayed = row.replay_id is not None
        self.key = ""
        self.gone = False
        self.probe = False
        self.held = False
        self.checking_in = False
        self.slotted = False
        self.started_at = 0
        self.settled = False
        self.task: asyncio.Task[None] | None = None
        self.timer: asyncio.TimerHandle | None = None


class Claims:
    """Every claimed, unfinished row of the node, by place."""

    def __init__(self, host: DispatchHost, settings: Dispatch) -> None:
        self._host = host
        self.by_place: dict[Place, Claim] = {}
        self.window = Window(*_limits(settings))
        self.batch = settings.batch
        # By class, the tenant whose share the last scan had no room for, and the rest of it: its deficit.
        self._owed: dict[bool, tuple[str, int]] = {False: ("", 0), True: ("", 0)}

    def reconfigure(self, settings: Dispatch) -> None:
        self.batch = settings.batch
        self.window.reconfigure(*_limits(settings))
        for tenant_id in {claim.row.tenant_id for claim in self.by_place.values()}:
            self._host.live.take_back(tenant_id)
            self._host.replayed.take_back(tenant_id)

    def scan(self, at: int) -> Iterator[Claim]:
        """Claim up to `batch` rows due at `at`. Each is claimed when it is handed out."""
        left = self.batch
        for claim in self._scan(self._host.live, at, left, replayed=False):
            left -= 1
            yield claim
        if left > 0 and not self._host.live.turn(at):
            yield from self._scan(self._host.replayed, at, left, replayed=True)

    def _scan(self, due: Due, at: int, budget: int, *, replayed: bool) -> Iterator[Claim]:
        turn = due.turn(at)
        budget = min(budget, self.window.free_rows())
        quantum = max(QUANTUM, -(-budget // max(1, len(turn))))
        owed_to, owed = self._owed[replayed]
        self._owed[replayed] = "", 0
        # Tenants whose rows cannot be read now, and why: the others are served all the same.
        unreadable: dict[str, StoreError] = {}
        while budget > 0 and self.window.room(replayed=replayed):
            tenant_id = next((tenant_id for tenant_id in turn if tenant_id not in unreadable), None)
            if tenant_id is None:
                break
            if not self.window.tenant_room(tenant_id, replayed=replayed):
                due.set_aside(tenant_id)
                continue
            share = owed if tenant_id == owed_to else quantum
            owed_to, taken = "", 0
            limit = min(share, budget, self.window.rows_left(tenant_id, replayed=replayed))
            try:
                page = due.page(tenant_id, at, limit, self._wanted)
                budget -= len(page)
                for claim in self._claim(due, tenant_id, page, replayed=replayed):
                    taken += 1
                    yield claim
            except StoreError as error:
                unreadable[tenant_id] = error
            if tenant_id not in turn:
                continue
            if taken < share and (budget <= 0 or not self.window.room(replayed=replayed)):
                self._owed[replayed] = tenant_id, share - taken  # and it stays first
            else:
                turn.move_to_end(tenant_id)
        if unreadable:
            raise next(iter(unreadable.values()))

    def more(self, at: int) -> bool:
        """Whether rows due at `at` could be claimed still: a scan ends at its batch."""
        if self._host.live.turn(at):
            return self.window.room(replayed=False)
        return bool(self._host.replayed.turn(at)) and self.window.room(replayed=True)

    def _wanted(self, seq: int, sink: int) -> bool:
        return (seq, sink) not in self.by_place and self._host.claimable(seq)

    def _claim(self, due: Due, tenant_id: str, page: list[tuple[int, int, int]], *, replayed: bool) -> Iterator[Claim]:
        try:
            rows = self._host.rows([(seq, sink) for _, seq, sink in page])
        except StoreError:
            for place in page:
                due.give_back(tenant_id, *place)
            raise
        for (due_at, seq, sink), row in zip(page, rows, strict=True):
            if row is None:  # an index entry without a row that can be read: nothing to deliver
                continue
            room = self.window.room(replayed=replayed) and self.window.tenant_room(tenant_id, replayed=replayed)
            if not room:
                due.give_back(tenant_id, due_at, seq, sink)
                continue
            yield self.take(seq, sink, row)

    def take(self, seq: int, sink: int, row: Row) -> Claim:
        """Claim a row, whatever the windows say."""
        claim = Claim(seq, sink, row)
        self.by_place[seq, sink] = claim
        self.window.claim(row.tenant_id, row.size_bytes, replayed=claim.replayed)
        return claim

    def finish(self, claim: Claim) -> bool:
        """The claim's outcome is written, or it is given up. True when its tenant had been set aside."""
        del self.by_place[claim.seq, claim.sink]
        tenant_id = claim.row.tenant_id
        self.window.finish(tenant_id, claim.row.size_bytes, replayed=claim.replayed)
        live, replayed = self._host.live.take_back(tenant_id), self._host.replayed.take_back(tenant_id)
        return live or replayed

    def give_up(self, claim: Claim) -> None:
        """Unclaim a row that this node has no more, or has again meanwhile: then it is due as before."""
        claim.gone = True
        self.give_back(claim)

    def give_back(self, claim: Claim) -> None:
        """Unclaim: the row is due as before."""
        self.finish(claim)
        due = self._host.replayed if claim.replayed else self._host.live
        due.give_back(claim.row.tenant_id, claim.row.at, claim.seq, claim.sink)


def _limits(settings: Dispatch) -> tuple[Limits, dict[str, Limits], Limits]:
    """Global, per tenant and default budgets."""
    whole = Limits(settings.max_inflight, settings.max_inflight_bytes)
    tenants = {
        tenant_id: Limits(limit.max_inflight or whole.rows, limit.max_inflight_bytes or whole.size_bytes)
        for tenant_id, limit in settings.tenants.items()
    }
    return whole, tenants, tenants.pop("default", whole)
