"""The due index against a plain model: a sorted list that is walked, which nobody could afford.

No row is lost or handed out twice while it is claimed, pages come in due order, and the next wake-up is exact.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from ankusa.store import keys
from ankusa.store.database import Database
from ankusa.store.due import DueIndex

TENANTS = ("a", "a-b", "ab", "b", "z_9")
"""Names that are prefixes and neighbours of one another."""

Row = tuple[int, int, int]
"""`(due_at, seq, sink)`."""


class DueMachine(RuleBasedStateMachine):
    """Rows come, are paged, claimed, given back, put off and settled; tenants are set aside; the store is reopened."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())
        self.database = Database(self.folder / "store", ("due",), blobs="", churning=("due",))
        self.at = 1000
        self.seq = 0
        self.pending: dict[str, set[Row]] = {tenant: set() for tenant in TENANTS}
        self.claimed: dict[tuple[int, int], tuple[str, Row]] = {}
        self.hidden: dict[tuple[int, int], tuple[str, Row]] = {}
        self.aside: set[str] = set()
        self.index = DueIndex(self.database, keys.LIVE)

    def teardown(self) -> None:
        self.database.close()
        shutil.rmtree(self.folder)

    # -- the store under it ---------------------------------------------------------

    def _put(self, tenant: str, row: Row) -> bytes:
        key = keys.due_key(keys.LIVE, tenant, *row)
        batch = self.database.batch()
        batch.put(key, b"", self.database.handles["due"])
        self.database.write(batch)
        return key

    def _delete(self, tenant: str, row: Row) -> None:
        batch = self.database.batch()
        batch.delete(keys.due_key(keys.LIVE, tenant, *row), self.database.handles["due"])
        self.database.write(batch)

    def _wanted(self, seq: int, sink: int) -> bool:
        return (seq, sink) not in self.claimed and (seq, sink) not in self.hidden

    def _due(self, tenant: str) -> list[Row]:
        return sorted(row for row in self.pending[tenant] if row[0] <= self.at)

    # -- what happens -----------------------------------------------------------------

    @initialize(rows=st.lists(st.tuples(st.sampled_from(TENANTS), st.integers(900, 1100)), max_size=20))
    def found_at_start(self, rows: list[tuple[str, int]]) -> None:
        """Rows that an earlier life left."""
        for tenant, due_at in rows:
            self.seq += 1
            row = (due_at, self.seq, 0)
            self._put(tenant, row)
            self.pending[tenant].add(row)
        self.index = DueIndex(self.database, keys.LIVE)

    @rule(tenant=st.sampled_from(TENANTS), after=st.integers(-50, 200), sinks=st.integers(1, 3))
    def commit(self, tenant: str, after: int, sinks: int) -> None:
        self.seq += 1
        for sink in range(sinks):
            row = (self.at + after, self.seq, sink)
            self.index.added(tenant, row[0], self._put(tenant, row))
            self.pending[tenant].add(row)

    @rule(tenant=st.sampled_from(TENANTS))
    def write_undurable(self, tenant: str) -> None:
        """A row is in the store and is not announced yet: no page may hand it out."""
        self.seq += 1
        row = (self.at, self.seq, 0)
        self._put(tenant, row)
        self.hidden[self.seq, 0] = (tenant, row)

    @precondition(lambda self: self.hidden)
    @rule(data=st.data())
    def announce(self, data: st.DataObject) -> None:
        place = data.draw(st.sampled_from(sorted(self.hidden)))
        tenant, row = self.hidden.pop(place)
        self.index.added(tenant, row[0], keys.due_key(keys.LIVE, tenant, *row))
        self.pending[tenant].add(row)

    @rule(ms=st.integers(0, 150))
    def time_passes(self, ms: int) -> None:
        self.at += ms

    @rule(data=st.data(), limit=st.integers(1, 6), kept=st.integers(0, 6))
    def page(self, data: st.DataObject, limit: int, kept: int) -> None:
        """Page a tenant in the turn; claim the first `kept` rows and give the others back, as a full window does."""
        turn = list(self.index.turn(self.at))
        assert set(turn) >= {tenant for tenant in TENANTS if self._due(tenant) and tenant not in self.aside}
        if not turn:
            return
        tenant = data.draw(st.sampled_from(turn))
        found = self.index.page(tenant, self.at, limit, self._wanted)
        assert found == self._due(tenant)[:limit]
        for row in found[:kept]:
            self.pending[tenant].remove(row)
            self.claimed[row[1], row[2]] = (tenant, row)
        for row in found[kept:]:
            self.index.give_back(tenant, *row)

    @precondition(lambda self: self.claimed)
    @rule(data=st.data(), put_off=st.one_of(st.none(), st.integers(0, 300)))
    def settle(self, data: st.DataObject, put_off: int | None) -> None:
        """A claimed row's outcome: gone, or due again later under a new key, in one batch."""
        place = data.draw(st.sampled_from(sorted(self.claimed)))
        tenant, row = self.claimed[place]
        self._delete(tenant, row)
        if put_off is not None:
            later = (self.at + put_off, row[1], row[2])
            self.index.added(tenant, later[0], self._put(tenant, later))
            self.pending[tenant].add(later)
        del self.claimed[place]

    @precondition(lambda self: self.claimed)
    @rule(data=st.data())
    def give_back(self, data: st.DataObject) -> None:
        place = data.draw(st.sampled_from(sorted(self.claimed)))
        tenant, row = self.claimed.pop(place)
        self.index.give_back(tenant, *row)
        self.pending[tenant].add(row)

    @rule(tenant=st.sampled_from(TENANTS))
    def set_aside(self, tenant: str) -> None:
        if tenant in self.index.turn(self.at):
            self.index.set_aside(tenant)
            self.aside.add(tenant)

    @rule(tenant=st.sampled_from(TENANTS))
    def take_back(self, tenant: str) -> None:
        assert self.index.take_back(tenant) is (tenant in self.aside)
        self.aside.discard(tenant)

    @rule(limit=st.integers(1, 6))
    def drain(self, limit: int) -> None:
        """Paged until nothing is due, everything due has been handed out, once and in order."""
        for tenant in list(self.aside):
            self.take_back(tenant)
        expected = {tenant: self._due(tenant) for tenant in TENANTS if self._due(tenant)}
        seen: dict[str, list[Row]] = {}
        while turn := self.index.turn(self.at):
            tenant = next(iter(turn))
            found = self.index.page(tenant, self.at, limit, self._wanted)
            if tenant in turn:
                turn.move_to_end(tenant)
            for row in found:
                self.pending[tenant].remove(row)
                self.claimed[row[1], row[2]] = (tenant, row)
            if found:
                seen.setdefault(tenant, []).extend(found)
        assert seen == expected
        # With nothing due, the wake-up is exact: after a page the first row of every tenant is known.
        times = [row[0] for tenant in TENANTS for row in self.pending[tenant]]
        following = self.index.next_due_at()
        assert following == min(times, default=None) or not expected

    @rule()
    def reopen(self) -> None:
        """A restart: claims are forgotten, every row in the store is pending."""
        for place, (tenant, row) in {**self.claimed, **self.hidden}.items():
            self.pending[tenant].add(row)
            del place
        self.claimed.clear()
        self.hidden.clear()
        self.aside.clear()
        self.index = DueIndex(self.database, keys.LIVE)

    # -- what always holds ------------------------------------------------------------

    @invariant()
    def every_tenant_with_a_due_row_has_its_turn(self) -> None:
        turn = set(self.index.turn(self.at))
        assert turn >= {tenant for tenant in TENANTS if self._due(tenant) and tenant not in self.aside}
        assert not turn & self.aside

    @invariant()
    def the_oldest_due_row_is_known(self) -> None:
        times = [row[0] for tenant in TENANTS for row in self._due(tenant)]
        oldest = self.index.oldest_due_at(self.at)
        if times:
            assert oldest is not None
            assert oldest <= min(times)

    @invariant()
    def the_next_wake_up_is_never_late(self) -> None:
        turn = self.index.turn(self.at)
        waiting = [
            row[0]
            for tenant in TENANTS
            if tenant not in turn and tenant not in self.aside
            for row in self.pending[tenant]
        ]
        following = self.index.next_due_at()
        if waiting:
            assert following is not None
            assert following <= min(waiting)

    @invariant()
    def what_waits_in_memory_is_bounded_by_what_waits_in_the_store(self) -> None:
        assert len(self.index._waiting) == len(self.index._queued)
        assert len(set(self.index._waiting)) == len(self.index._waiting)


TestDue = DueMachine.TestCase
TestDue.settings = settings(max_examples=25, stateful_step_count=40)
