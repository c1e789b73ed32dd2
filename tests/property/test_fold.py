"""Any sequence of records keeps the tables whole, and folding the log again makes the same tables.

Commits, outcomes (stale, doubled and impossible ones too), replay pages, commands, lanes, breakers, check-ins, set-up
changes and restarts, in any order, on a real local log.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from ankusa.core.fold import Accepted
from ankusa.dispatch.breakers import Breakers
from ankusa.store import keys
from schemas import records
from schemas.config import Dispatch
from schemas.records import (
    Breaker,
    BreakerMove,
    BreakerState,
    Change,
    ChangeAction,
    ChangeKind,
    CheckIn,
    Envelope,
    ErrorClass,
    Held,
    IpRulesChange,
    Job,
    JobDrop,
    JobPatch,
    JobStart,
    JobState,
    LaneHeal,
    LimitChange,
    Outcome,
    OutcomeBatch,
    OutcomeKind,
    PackExpiry,
    Page,
    PenEntry,
    Purge,
    Revival,
    RouteChange,
    Row,
    RowState,
    SourceChange,
)
from schemas.routes import IpRules, Route
from streams.local.log import LocalLog
from tests.property.refold import content, refold

JOBS = ("job-1", "job-2")
TENANTS = ("a", "ab")
LANES = (None, None, "k", "l")
KEYS = (None, None, "evt-1", "evt-2")
HOOK = st.tuples(st.sampled_from(TENANTS), st.integers(0, 2), st.sampled_from(LANES), st.sampled_from(KEYS))
KINDS = st.sampled_from(OutcomeKind)
BREAKER = Dispatch(breaker_failures=2, breaker_open_ms=500, breaker_max_open_ms=1000)


class FoldMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())
        self.loop = asyncio.new_event_loop()
        self.at = 1_700_000_000_000
        self.number = 0
        self.last: Any = None
        self.seen: list[tuple[int, int]] = []
        self.held: list[PenEntry] = []

    @initialize()
    def open(self) -> None:
        self.log = self.run(self._open())

    async def _open(self) -> LocalLog:
        log = LocalLog(self.folder / "store", lambda: self.at)
        log.tables.database.flush = lambda: None  # type: ignore[method-assign]  # durability is not what is tested
        return log

    def run(self, body: Any) -> Any:
        return self.loop.run_until_complete(body)

    def teardown(self) -> None:
        try:
            if hasattr(self, "log"):
                self.a_refold_is_the_same()
                self.log.close()
        finally:
            self.loop.close()
            shutil.rmtree(self.folder)

    def a_refold_is_the_same(self) -> None:
        again = refold(self.log, self.folder / "again")
        live, folded = content(self.log.tables), content(again)
        counts = again.counts.by_sink
        again.close()
        for family, entries in live.items():
            assert folded[family] == entries, family
        assert counts == self.log.tables.counts.by_sink

    def rows(self) -> dict[tuple[int, int], Row]:
        items = self.log.tables.database.items("rows", b"", b"\xff" * 20)
        return {keys.split_row_key(key): records.decode_row(value) for key, value in items}

    # -- records ----------------------------------------------------------------------

    @rule(hooks=st.lists(HOOK, min_size=1, max_size=4))
    def commit(self, hooks: list[tuple[str, int, str | None, str | None]]) -> None:
        entries = []
        for tenant, sinks, lane, key in hooks:
            self.number += 1
            hook_id = f"hook-{self.number:05d}"
            envelope = Envelope(
                hook_id,
                "orders",
                tenant,
                self.at,
                ("http",) * sinks,
                (),
                None,
                hook_id,
                key,
                5000 if key else 0,
                ordering_keys=(lane,) * sinks if lane else (),
            )
            entries.append((envelope, records.encode(envelope), b"body"))
        for (envelope, _, _), answer in zip(entries, self.run(self.log.commit(entries, [])), strict=True):
            if isinstance(answer, Accepted):
                self.seen += [(answer.seq, sink) for sink in range(len(envelope.sinks))]

    def _publish(self, record: Any) -> None:
        async def publish() -> None:
            self.log.publish(record)

        self.run(publish())
        self.last = record

    @precondition(lambda self: self.seen)
    @rule(
        data=st.data(),
        outcomes=st.lists(st.tuples(KINDS, st.sampled_from([0, 0, 0, -1, 1]), st.booleans()), min_size=1, max_size=4),
        doubled=st.booleans(),
    )
    def outcomes(self, data: st.DataObject, outcomes: list[tuple[OutcomeKind, int, bool]], doubled: bool) -> None:
        """Of rows that are there and rows that are not, of this generation and of another."""
        rows, items = self.rows(), []
        for kind, off, attempted in outcomes:
            seq, sink = data.draw(st.sampled_from(self.seen))
            row = rows.get((seq, sink))
            generation = (row.generation if row else 0) + off
            attempt = (row.attempts if row else 0) + 1 if attempted else 0
            error = None if kind is OutcomeKind.DELIVERED else ErrorClass.TRANSIENT
            items.append(
                Outcome(seq, sink, max(0, generation), kind, self.at, self.at, attempt, self.at + 700, "e", error)
            )
        self._publish(OutcomeBatch(tuple(items * (2 if doubled else 1))))

    @rule(job=st.sampled_from(JOBS), data=st.data(), stale=st.booleans(), finished=st.booleans())
    def page(self, job: str, data: st.DataObject, stale: bool, finished: bool) -> None:
        dead = [(place, row) for place, row in self.rows().items() if row.state is RowState.DEAD]
        some = data.draw(st.lists(st.sampled_from(dead), max_size=3)) if dead else []
        revivals = tuple(Revival(*place, row.generation + stale) for place, row in some)
        self._publish(Page(job, self.at, b"%d" % self.number, len(some), 0, revivals, finished))

    @rule(job=st.sampled_from(JOBS))
    def start_job(self, job: str) -> None:
        made = Job(
            id=job,
            kind="dlq",
            state=JobState.RUNNING,
            filter={},
            rate=1,
            max_lag_ms=1,
            created_at=self.at,
            updated_at=self.at,
        )
        self.run(self.log.command(JobStart(made)))

    @rule(job=st.sampled_from(JOBS), state=st.sampled_from([None, *JobState]), drop=st.booleans())
    def change_job(self, job: str, state: JobState | None, drop: bool) -> None:
        self.run(self.log.command(JobDrop(job, self.at) if drop else JobPatch(job, self.at, state, rate=7)))

    @rule(key=st.sampled_from(["a/orders/0/http", "ab/orders/1/http"]), failures=st.integers(0, 2), back=st.booleans())
    def breaker(self, key: str, failures: int, back: bool) -> None:
        state = BreakerState.OPEN if failures == 2 else BreakerState.CLOSED
        breaker = Breaker(state, failures % 2, 0, self.at + 100, self.at - 10 * back)
        self._publish(OutcomeBatch((), (BreakerMove(key, breaker),)))

    @rule()
    def heal(self) -> None:
        lanes = tuple(sorted({row.lane for row in self.rows().values() if row.lane is not None}))
        self._publish(LaneHeal(lanes))

    @precondition(lambda self: self.seen)
    @rule(data=st.data())
    def check_in(self, data: st.DataObject) -> None:
        """Of hooks that are there, that are not, or that were checked in before."""
        self.number += 1
        seqs = data.draw(st.lists(st.sampled_from(sorted({seq for seq, _ in self.seen})), min_size=1, unique=True))
        self.run(self.log.check_in(CheckIn("a", f"pack-{self.number}", self.at, tuple(seqs))))

    @precondition(lambda self: self.number)
    @rule(data=st.data())
    def pack_expiry(self, data: st.DataObject) -> None:
        """Of packs that are known, that are not, or no longer."""
        numbers = data.draw(st.lists(st.integers(1, self.number), min_size=1, max_size=4))
        self._publish(PackExpiry(tuple(f"pack-{number}" for number in numbers)))

    @rule(name=st.sampled_from("xy"), deleted=st.booleans(), told=st.booleans())
    def source(self, name: str, deleted: bool, told: bool) -> None:
        change = SourceChange(f"a.{name}", "a", name, self.at, self.at, None if deleted else b"spec-%d" % self.at)
        action = ChangeAction.DELETED if deleted else ChangeAction.UPDATED
        audit = Change(ChangeKind.SOURCE, f"a.{name}", action, self.at, b"{}")
        self.run(self.log.change(change, audit if told else None))

    @rule(name=st.sampled_from("xy"), deleted=st.booleans())
    def route(self, name: str, deleted: bool) -> None:
        made = Route(name, f"/{name}", ("POST",), True, (), {}, self.at, self.at)
        self.run(self.log.change(RouteChange(name, self.at, None if deleted else made), None))

    @rule(default=st.sampled_from(["allow", "deny"]))
    def ip_rules(self, default: Any) -> None:
        self.run(self.log.change(IpRulesChange(self.at, IpRules(default)), None))

    @rule(
        key=st.sampled_from(["a/orders/0/http", "ab/orders/1/http"]),
        results=st.lists(st.tuples(st.booleans(), st.booleans(), st.integers(0, 400)), min_size=1, max_size=8),
    )
    def attempts_at_a_sink(self, key: str, results: list[tuple[bool, bool, int]]) -> None:
        """What their results make of its breaker, as a dispatcher publishes it: each in a record of its own."""
        breakers = Breakers(self.log.tables.breakers(), BREAKER)
        for alive, probe, ms in results:
            self.at += ms
            breakers.resulted(key, self.at, alive=alive, probe=probe)
            moves = breakers.take_moves(self.at)
            if moves:
                self._publish(OutcomeBatch((), moves))
        stored = self.log.tables.breakers()
        assert breakers.phase(key, self.at) is Breakers(stored, BREAKER).phase(key, self.at)

    @rule()
    def hold(self) -> None:
        self.number += 1
        held = Held(f"held-{self.number}", "orders", "a", self.at, "POST", "/", (), "signature", 4)
        entry = records.encode(held)
        self.run(self.log.commit([], [(held, entry, b"body")]))
        self.held.append(PenEntry(held.received_at, held.id, len(entry) + 4))

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def purge(self, data: st.DataObject) -> None:
        gone = data.draw(st.lists(st.sampled_from(self.held), min_size=1, unique=True))
        self.held = [entry for entry in self.held if entry not in gone]
        self.run(self.log.purge(Purge(self.at, tuple(gone))))

    @rule(rate=st.one_of(st.none(), st.integers(1, 5)))
    def limit(self, rate: int | None) -> None:
        self.run(self.log.limit(LimitChange("a", self.at, None if rate is None else float(rate), rate)))

    # -- not records -------------------------------------------------------------------

    @rule(ms=st.integers(0, 3000))
    def time_passes(self, ms: int) -> None:
        self.at += ms

    @rule()
    def restart(self) -> None:
        self.log.close()
        self.log = self.run(self._open())

    @precondition(lambda self: self.last is not None)
    @rule()
    def publish_the_last_again(self) -> None:
        """Rows, their history and everything but a job's counters is as it was: nothing happens a second time."""
        before = content(self.log.tables)
        self._publish(self.last)
        after = content(self.log.tables)
        for family in set(before) - {"jobs"}:
            assert after[family] == before[family], family

    # -- what always holds ----------------------------------------------------------------

    @invariant()
    def every_row_has_exactly_one_place(self) -> None:
        if not hasattr(self, "log"):
            return
        database, expected = self.log.tables.database, defaultdict(set)
        for (seq, sink), row in self.rows().items():
            if row.state is RowState.DEAD:
                expected["dead"].add(keys.dead_key(row.at, seq, sink))
            elif row.state is RowState.MEMBER:
                assert row.lane is not None
                expected["members"].add(keys.member_key(row.lane, row.place, seq))
            else:
                replayed = row.replay_id is not None
                expected["due"].add(keys.due_key(replayed, row.tenant_id, row.at, seq, sink))
        for family in ("due", "dead", "members"):
            assert set(database.keys(family, b"", b"\xff" * 20)) == expected[family], family

    @invariant()
    def counts_are_those_of_a_full_scan(self) -> None:
        if not hasattr(self, "log"):
            return
        live = replayed = dead = 0
        by_sink: Counter[str] = Counter()
        for (_, sink), row in self.rows().items():
            is_dead = row.state is RowState.DEAD
            dead += is_dead
            replayed += not is_dead and row.replay_id is not None
            live += not is_dead and row.replay_id is None
            by_sink[records.sink_key(row.tenant_id, row.source_id, sink, row.sink_type)] += 1
        counts = self.log.tables.counts
        assert counts.total() == (live, replayed, dead)
        assert {key: sum(count) for key, count in counts.by_sink.items() if not key.startswith("/")} == dict(by_sink)
        assert self.log.tables.pen_size() == (len(self.held), sum(entry.stored_bytes for entry in self.held))

    @invariant()
    def every_lane_has_one_head_and_counts_its_rows(self) -> None:
        if not hasattr(self, "log"):
            return
        lanes: dict[str, list[tuple[int, Row]]] = defaultdict(list)
        for (seq, _), row in self.rows().items():
            if row.lane is not None and row.state is not RowState.DEAD:
                lanes[row.lane].append((seq, row))
        for key, waiting in lanes.items():
            heads = [seq for seq, row in waiting if row.state is RowState.PENDING]
            lane = self.log.tables.lane(key)
            assert lane is not None
            assert heads == [lane.head]
            assert lane.depth == len(waiting)
        stored = {key.decode() for key in self.log.tables.database.keys("lanes", b"", b"\xff" * 20)}
        assert stored == set(lanes)
        members = sum(row.state is RowState.MEMBER for waiting in lanes.values() for _, row in waiting)
        assert self.log.tables.lane_counts() == (len(lanes), members)


TestFold = FoldMachine.TestCase
TestFold.settings = settings(max_examples=12, stateful_step_count=30)
