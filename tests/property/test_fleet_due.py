"""The due rows of several partitions as one, against a plain model: nothing is lost or handed out twice, a page is full
while its tenant has due rows anywhere, every partition is in order, and partitions come and go."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from ankusa.store import keys
from ankusa.store.database import Database
from ankusa.store.due import DueIndex
from schemas.records import seq_of
from streams.kafka.due import FleetDue
from streams.kafka.places import log_offset, partition_of

TENANTS = ("a", "ab", "b")
PARTITIONS = (0, 1, 7)

Row = tuple[int, int, int]
"""`(due_at, seq, sink)`."""


class FleetDueMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())
        self.databases = {
            number: Database(self.folder / str(number), ("due",), blobs="", churning=("due",)) for number in PARTITIONS
        }
        self.fleet = FleetDue()
        self.indexes: dict[int, DueIndex] = {}
        self.at = 1000
        self.count = 0
        self.pending: dict[str, set[Row]] = {tenant: set() for tenant in TENANTS}
        self.claimed: dict[tuple[int, int], tuple[str, Row]] = {}
        self.aside: set[str] = set()

    def teardown(self) -> None:
        for database in self.databases.values():
            database.close()
        shutil.rmtree(self.folder)

    def _due(self, tenant: str) -> set[Row]:
        return {row for row in self.pending[tenant] if row[0] <= self.at and partition_of(row[1]) in self.indexes}

    def _put(self, tenant: str, row: Row) -> None:
        partition = partition_of(row[1])
        key = keys.due_key(keys.LIVE, tenant, *row)
        database = self.databases[partition]
        batch = database.batch()
        batch.put(key, b"", database.handles["due"])
        database.write(batch)
        if partition in self.indexes:
            self.indexes[partition].added(tenant, row[0], key)
        self.pending[tenant].add(row)

    def _delete(self, tenant: str, row: Row) -> None:
        database = self.databases[partition_of(row[1])]
        batch = database.batch()
        batch.delete(keys.due_key(keys.LIVE, tenant, *row), database.handles["due"])
        database.write(batch)

    def _wanted(self, seq: int, sink: int) -> bool:
        return (seq, sink) not in self.claimed

    # -- what happens -----------------------------------------------------------------

    @rule(number=st.sampled_from(PARTITIONS))
    def gain(self, number: int) -> None:
        """Own a partition, whose rows others left; one that is owned is opened again."""
        self.indexes[number] = DueIndex(self.databases[number], keys.LIVE)
        self.fleet.add(number, self.indexes[number])

    @rule(number=st.sampled_from(PARTITIONS))
    def lose(self, number: int) -> None:
        self.fleet.remove(number)
        self.indexes.pop(number, None)
        for place in [place for place in self.claimed if partition_of(place[0]) == number]:
            tenant, row = self.claimed.pop(place)
            self.fleet.give_back(tenant, *row)
            self.pending[tenant].add(row)

    @rule(tenant=st.sampled_from(TENANTS), number=st.sampled_from(PARTITIONS), after=st.integers(-50, 200))
    def commit(self, tenant: str, number: int, after: int) -> None:
        self.count += 1
        self._put(tenant, (self.at + after, seq_of(log_offset(number, self.count), 0), 0))

    @rule(ms=st.integers(0, 150))
    def time_passes(self, ms: int) -> None:
        self.at += ms

    @rule(data=st.data(), limit=st.integers(1, 6), kept=st.integers(0, 6))
    def page(self, data: st.DataObject, limit: int, kept: int) -> None:
        turn = list(self.fleet.turn(self.at))
        if not turn:
            return
        tenant = data.draw(st.sampled_from(turn))
        due = self._due(tenant)
        found = self.fleet.page(tenant, self.at, limit, self._wanted)
        assert len(found) == min(limit, len(due))
        for number in self.indexes:
            mine = [row for row in found if partition_of(row[1]) == number]
            assert mine == sorted(row for row in due if partition_of(row[1]) == number)[: len(mine)]
        for row in found[:kept]:
            self.pending[tenant].remove(row)
            self.claimed[row[1], row[2]] = (tenant, row)
        for row in found[kept:]:
            self.fleet.give_back(tenant, *row)

    @precondition(lambda self: self.claimed)
    @rule(data=st.data(), put_off=st.one_of(st.none(), st.integers(0, 300)))
    def settle(self, data: st.DataObject, put_off: int | None) -> None:
        place = data.draw(st.sampled_from(sorted(self.claimed)))
        tenant, row = self.claimed.pop(place)
        self._delete(tenant, row)
        if put_off is not None:
            self._put(tenant, (self.at + put_off, row[1], row[2]))

    @rule(tenant=st.sampled_from(TENANTS))
    def set_aside(self, tenant: str) -> None:
        if tenant in self.fleet.turn(self.at):
            self.fleet.set_aside(tenant)
            self.aside.add(tenant)

    @rule(tenant=st.sampled_from(TENANTS))
    def take_back(self, tenant: str) -> None:
        self.fleet.take_back(tenant)
        self.aside.discard(tenant)

    @rule(limit=st.integers(1, 6))
    def drain(self, limit: int) -> None:
        for tenant in list(self.aside):
            self.take_back(tenant)
        expected = {tenant: self._due(tenant) for tenant in TENANTS if self._due(tenant)}
        seen: dict[str, set[Row]] = {}
        while turn := self.fleet.turn(self.at):
            tenant = next(iter(turn))
            found = self.fleet.page(tenant, self.at, limit, self._wanted)
            if tenant in turn:
                turn.move_to_end(tenant)
            for row in found:
                self.pending[tenant].remove(row)
                self.claimed[row[1], row[2]] = (tenant, row)
                assert row not in seen.setdefault(tenant, set())
                seen[tenant].add(row)
        assert seen == expected

    # -- what always holds ------------------------------------------------------------

    @invariant()
    def every_tenant_with_a_due_row_has_its_turn(self) -> None:
        turn = set(self.fleet.turn(self.at))
        assert turn >= {tenant for tenant in TENANTS if self._due(tenant) and tenant not in self.aside}
        assert not turn & self.aside
        assert turn == set(self.fleet._places)

    @invariant()
    def the_oldest_due_row_is_known(self) -> None:
        times = [row[0] for tenant in TENANTS for row in self._due(tenant)]
        oldest = self.fleet.oldest_due_at(self.at)
        assert not times or (oldest is not None and oldest <= min(times))

    @invariant()
    def the_next_wake_up_is_never_late(self) -> None:
        turn = self.fleet.turn(self.at)
        waiting = [
            row[0]
            for tenant in TENANTS
            if tenant not in turn and tenant not in self.aside
            for row in self.pending[tenant]
            if partition_of(row[1]) in self.indexes
        ]
        following = self.fleet.next_due_at()
        assert not waiting or (following is not None and following <= min(waiting))


TestFleetDue = FleetDueMachine.TestCase
TestFleetDue.settings = settings(max_examples=25, stateful_step_count=40)
