"""A node under anything at once: moody sinks, crashes, stops, a refusing store, a silent source store, new limits.

Whatever happened, when it is over every row has been delivered or is dead, counted and found; a lane's hooks went one
at a time and in order; and folding the node's log again makes the tables that it has.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from ankusa.sinks.contract import Delivery, Failed, Ok
from schemas.records import RowState
from tests.contract.embedded import EmbeddedHost
from tests.contract.host import Hook
from tests.property.refold import content, refold

ANSWERS: dict[str, Any] = {
    "ok": Ok(),
    "transient": Failed("transient", "500"),
    "permanent": Failed("permanent", "410"),
    "retry_after": Failed("retry_after", "429", 1500),
    "nonsense": None,
}
MOODS = ("ok", "ok", "transient", "permanent", "retry_after", "nonsense", "raise", "slow", "hang")


class MoodySink:
    """Does what its mood says; remembers what it took, and what runs."""

    def __init__(self, kind: str) -> None:
        self.type = kind
        self.batching, self.inline_max_bytes = False, None
        self.mood = "ok"
        self.attempted: list[str] = []
        self.delivered: set[str] = set()
        self.running: list[str] = []

    async def deliver(self, delivery: Delivery) -> Any:
        self.attempted.append(delivery.id)
        self.running.append(delivery.id)
        try:
            return await self._answer(delivery)
        finally:
            self.running.remove(delivery.id)

    async def _answer(self, delivery: Delivery) -> Any:
        if self.mood == "raise":
            raise ValueError("boom")
        if self.mood == "hang":
            await asyncio.Event().wait()
        if self.mood == "slow":
            await asyncio.sleep(0.3)
        answer = ANSWERS.get(self.mood, Ok())
        if isinstance(answer, Ok):
            self.delivered.add(delivery.id)
        return answer

    async def close(self) -> None:
        """Nothing to release."""


class NodeMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())
        self.sinks = {"plain": [MoodySink("http"), MoodySink("log")], "lane": [MoodySink("http")]}
        self.hooks: list[tuple[str, str]] = []
        self.lane_of: dict[str, str] = {}
        self.refusing = self.refused = False

    @initialize()
    def start(self) -> None:
        self.host = EmbeddedHost(
            self.folder,
            batch=3,
            concurrency=4,
            sink_concurrency=3,
            max_inflight=6,
            attempt_timeout_ms=2000,
            breaker_failures=3,
            breaker_open_ms=500,
            breaker_max_open_ms=2000,
        )
        for name, sinks in self.sinks.items():
            self.host.source(name, *sinks)
        self.host.start_job("job")

    def teardown(self) -> None:
        try:
            if hasattr(self, "host"):
                self.everything_ends_well()
                self.host.close()
        finally:
            shutil.rmtree(self.folder)

    # -- what happens --------------------------------------------------------------------

    @precondition(lambda self: not self.refusing)
    @rule(
        source=st.sampled_from(["plain", "lane", "lane"]),
        tenant=st.sampled_from("ab"),
        keys=st.lists(st.sampled_from("kl"), min_size=1, max_size=4),
    )
    def commit(self, source: str, tenant: str, keys: list[str]) -> None:
        entries = []
        for key in keys:
            hook_id = f"{len(self.hooks):05d}"
            self.hooks.append((hook_id, source))
            if source == "lane":
                self.lane_of[hook_id] = f"{tenant}/{key}"
            types = tuple(sink.type for sink in self.sinks[source])
            entries.append(Hook(hook_id, source, tenant, types, ordering_keys=(key,) if source == "lane" else ()))
        self.host.commit(entries)

    @rule(data=st.data(), mood=st.sampled_from(MOODS))
    def moods_change(self, data: st.DataObject, mood: str) -> None:
        data.draw(st.sampled_from([sink for sinks in self.sinks.values() for sink in sinks])).mood = mood

    @rule(ms=st.sampled_from([0, 1, 10, 30, 300, 700, 2500, 8000]))
    def time_passes(self, ms: int) -> None:
        self.host.advance(ms)

    @rule()
    def crash(self) -> None:
        self.host.crash()
        self.refusing = False

    @rule(grace_ms=st.sampled_from([0, 50, 3000]))
    def restart(self, grace_ms: int) -> None:
        self.host.restart(grace_ms)
        self.refusing = False

    @rule(after_taking=st.booleans())
    def the_store_refuses(self, after_taking: bool) -> None:
        if not self.refusing:
            if after_taking:
                self.host.refuse_writes_after_taking_them()
            else:
                self.host.refuse_writes(True)
            self.refusing = self.refused = True

    @precondition(lambda self: self.refusing)
    @rule()
    def the_store_recovers(self) -> None:
        self.host.refuse_writes(False)
        self.refusing = False

    @rule(answer=st.booleans())
    def the_source_store(self, answer: bool) -> None:
        self.host.sources_answer(answer)

    @rule(concurrency=st.integers(1, 5), max_inflight=st.integers(1, 8), sink_concurrency=st.integers(1, 4))
    def limits_change(self, concurrency: int, max_inflight: int, sink_concurrency: int) -> None:
        self.host.reconfigure(concurrency=concurrency, max_inflight=max_inflight, sink_concurrency=sink_concurrency)

    @precondition(lambda self: self.hooks and not self.refusing)
    @rule()
    def the_dead_are_revived(self) -> None:
        """All but those of lanes: a revived row joins its lane's tail, out of the order that is checked here."""
        dead = [hook_id for hook_id, source in self.hooks if source == "plain" and self._is_dead(hook_id)]
        if dead:
            self.host.revive("job", *dead)

    def _is_dead(self, hook_id: str) -> bool:
        return any(row.state is RowState.DEAD for row in self.host.rows(hook_id).values())

    # -- what always holds ------------------------------------------------------------------

    @invariant()
    def counts_are_those_of_a_full_scan(self) -> None:
        if hasattr(self, "host") and not self.refusing:
            live, replayed, dead = self.host.counts()
            rows = [row for hook_id, _ in self.hooks for row in self.host.rows(hook_id).values()]
            states = Counter(
                "dead" if row.state is RowState.DEAD else "live" if row.replay_id is None else "replayed"
                for row in rows
            )
            assert (live, replayed, dead) == (states["live"], states["replayed"], states["dead"])

    @invariant()
    def a_lane_goes_one_at_a_time_and_in_order(self) -> None:
        (sink,) = self.sinks["lane"]
        assert all(count == 1 for count in Counter(self.lane_of[hook_id] for hook_id in sink.running).values())
        last: dict[str, str] = {}
        for hook_id in sink.attempted:
            lane = self.lane_of[hook_id]
            assert hook_id >= last.get(lane, "")
            last[lane] = hook_id

    def everything_ends_well(self) -> None:
        for sinks in self.sinks.values():
            for sink in sinks:
                sink.mood = "ok"
        self.host.sources_answer(True)
        if self.refusing:
            self.the_store_recovers()
        self.host.reconfigure(concurrency=4, max_inflight=6, sink_concurrency=3)
        self.host.advance(900_000)
        assert self.host.counts()[:2] == (0, 0)
        assert self.host.tick() == 0
        for hook_id, source in self.hooks:
            rows = self.host.rows(hook_id)
            assert all(row.state is RowState.DEAD for row in rows.values())
            for index, sink in enumerate(self.sinks[source]):
                assert index in rows or hook_id in sink.delivered, "a row that is gone was delivered"
        self.counts_are_those_of_a_full_scan()
        self.a_lane_goes_one_at_a_time_and_in_order()
        pressure = self.host.pressure()
        assert pressure is not None
        assert (pressure.lag_ms, pressure.window_full) == (0, False)
        used = self.host.dispatcher.claims.window.used
        assert (used.rows, used.size_bytes) == (0, 0)
        assert self.host.dispatcher.slots.running == self.host.dispatcher.slots.waiting == 0
        if not self.refused:  # what a store has taken back is in no record
            self.a_refold_is_the_same()

    def a_refold_is_the_same(self) -> None:
        again = refold(self.host.log, self.folder / "again")
        try:
            live, folded = content(self.host.log.tables), content(again)
        finally:
            again.close()
        for family, entries in live.items():
            assert folded[family] == entries, family


TestNode = NodeMachine.TestCase
TestNode.settings = settings(max_examples=8, stateful_step_count=25)
