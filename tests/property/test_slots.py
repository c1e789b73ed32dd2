"""Slots against a plain model: caps are never exceeded, nobody is starved, and nothing is left behind at the end."""

from __future__ import annotations

from collections import Counter

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from ankusa.core.slots import Caps, Slots, replay_share

TENANTS = ("a", "b", "c")
KEYS = [(tenant, f"{tenant}/s{source}/0/http") for tenant in TENANTS for source in range(2)]
CAPS = st.builds(
    Caps,
    total=st.integers(1, 8),
    per_sink=st.one_of(st.none(), st.integers(1, 4)),
    per_tenant=st.dictionaries(st.sampled_from(TENANTS), st.integers(1, 5), max_size=2),
    default_tenant=st.integers(1, 8),
)

Item = tuple[str, str, bool, int]
"""Tenant, sink key, whether replayed, number."""


class EagerSlots(Slots[Item]):
    """Slots that work out everybody's turn again after each start and each end."""

    def next(self) -> Item | None:
        item = super().next()
        self.reconfigure(self.caps)
        return item

    def done(self, tenant_id: str, key: str, *, replayed: bool) -> None:
        super().done(tenant_id, key, replayed=replayed)
        self.reconfigure(self.caps)


class SlotsMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.number = 0
        self.waiting: list[Item] = []
        self.running: list[Item] = []

    @initialize(caps=CAPS)
    def start(self, caps: Caps) -> None:
        self.slots: Slots[Item] = Slots(caps)
        self.eager = EagerSlots(caps)
        self.caps = caps

    # -- what may start, plainly -------------------------------------------------------

    def cap(self, tenant: str) -> int:
        return self.caps.per_tenant.get(tenant, self.caps.default_tenant)

    def may_start(self, item: Item) -> bool:
        tenant, key, replayed, _ = item
        caps, running = self.caps, self.running
        at_key = [one for one in running if one[1] == key]
        of_tenant = [one for one in running if one[0] == tenant]
        free = len(running) < caps.total and len(of_tenant) < self.cap(tenant)
        free = free and (caps.per_sink is None or len(at_key) < caps.per_sink)
        if not replayed:
            return free
        replays = [one for one in running if one[2]]
        free = free and len(replays) < replay_share(caps.total)
        free = free and sum(one[0] == tenant for one in replays) < replay_share(self.cap(tenant))
        return free and (caps.per_sink is None or sum(one[1] == key for one in replays) < replay_share(caps.per_sink))

    def end(self, item: Item) -> None:
        self.slots.done(item[0], item[1], replayed=item[2])
        self.eager.done(item[0], item[1], replayed=item[2])

    # -- what happens ----------------------------------------------------------------------

    @rule(key=st.sampled_from(KEYS), replayed=st.booleans(), count=st.integers(1, 4))
    def offer(self, key: tuple[str, str], replayed: bool, count: int) -> None:
        for _ in range(count):
            self.number += 1
            item = (*key, replayed, self.number)
            self.slots.offer(*key, item, replayed=replayed)
            self.eager.offer(*key, item, replayed=replayed)
            self.waiting.append(item)

    @rule(times=st.integers(1, 4))
    def next(self, times: int) -> None:
        for _ in range(times):
            item = self.slots.next()
            assert item == self.eager.next(), "a turn was missed"
            startable = [one for one in self.waiting if self.may_start(one)]
            if item is None:
                assert not startable
                return
            assert item in startable
            assert not item[2] or not any(not one[2] for one in startable), "a live row goes first"
            line = [one for one in self.waiting if one[1:3] == item[1:3]]
            assert item == line[0], "a sink key's rows start in order"
            self.waiting.remove(item)
            self.running.append(item)

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def done(self, data: st.DataObject) -> None:
        item = data.draw(st.sampled_from(self.running))
        self.running.remove(item)
        self.end(item)

    @rule(key=st.sampled_from(KEYS))
    def take(self, key: tuple[str, str]) -> None:
        taken = self.slots.take(key[1])
        assert taken == self.eager.take(key[1])
        assert sorted(taken) == sorted(one for one in self.waiting if one[1] == key[1])
        self.waiting = [one for one in self.waiting if one[1] != key[1]]

    @rule(tenant=st.sampled_from(TENANTS), odd=st.booleans())
    def withdraw(self, tenant: str, odd: bool) -> None:
        def unwanted(item: Item) -> bool:
            return item[0] == tenant and item[3] % 2 == odd

        taken = self.slots.withdraw(unwanted)
        assert taken == self.eager.withdraw(unwanted)
        assert sorted(taken) == sorted(filter(unwanted, self.waiting))
        self.waiting = [one for one in self.waiting if not unwanted(one)]

    @rule(caps=CAPS)
    def reconfigure(self, caps: Caps) -> None:
        self.slots.reconfigure(caps)
        self.eager.reconfigure(caps)
        self.caps = caps

    @rule()
    def everything_ends_and_nothing_is_left(self) -> None:
        for _ in range(10_000):
            while (item := self.slots.next()) is not None:
                assert item == self.eager.next()
                self.waiting.remove(item)
                self.running.append(item)
            if not self.running:
                break
            self.end(self.running.pop())
        assert not self.waiting
        assert self.slots.running == self.slots.replays_running == self.slots.waiting == 0
        slots = self.slots
        counts = (slots._by_sink, slots._replays_by_sink, slots._by_tenant, slots._replays_by_tenant, slots._tenant_of)
        assert not any(counts)
        for line in (slots._live, slots._replayed):
            assert not line.queues
            assert not line.keys
            assert not line.tenants

    # -- what always holds ---------------------------------------------------------------------

    @invariant()
    def the_counts_are_right(self) -> None:
        if not hasattr(self, "slots"):
            return
        assert self.slots.running == len(self.running)
        assert self.slots.replays_running == sum(one[2] for one in self.running)
        assert self.slots.waiting == len(self.waiting)
        assert self.slots.depth() == Counter(one[1] for one in self.waiting)
        assert self.slots.running_by_sink() == Counter(one[1] for one in self.running)

    @invariant()
    def the_turns_are_those_of_who_works_them_out_each_time(self) -> None:
        if not hasattr(self, "slots"):
            return
        assert self.slots._tenant_of == self.eager._tenant_of
        pairs = ((self.slots._live, self.eager._live), (self.slots._replayed, self.eager._replayed))
        for line, eager in pairs:
            assert list(line.tenants) == list(eager.tenants)
            assert {tenant: list(keys) for tenant, keys in line.keys.items()} == {
                tenant: list(keys) for tenant, keys in eager.keys.items()
            }


TestSlots = SlotsMachine.TestCase
TestSlots.settings = settings(max_examples=40, stateful_step_count=30)


def run_all(slots: Slots[str]) -> list[str]:
    started = []
    while (item := slots.next()) is not None:
        started.append(item)
    return started


def test_slots_go_round_over_tenants_and_then_over_their_sink_keys() -> None:
    slots: Slots[str] = Slots(Caps(1000, None, {}, 1000))
    for tenant, keys in (("a", ("1", "2", "3")), ("b", ("1",))):
        for key in keys:
            for number in range(30):
                slots.offer(tenant, f"{tenant}/{key}", f"{tenant}/{key}/{number}", replayed=False)
    first = run_all(slots)[:60]
    share = Counter(item.split("/")[0] for item in first)
    assert abs(share["a"] - share["b"]) <= 1
    keys_of_a = Counter(item.split("/")[1] for item in first if item.startswith("a"))
    assert max(keys_of_a.values()) - min(keys_of_a.values()) <= 1


def test_a_tenant_that_comes_late_waits_for_one_round_at_most() -> None:
    slots: Slots[str] = Slots(Caps(4, None, {}, 4))
    for number in range(100):
        slots.offer("a", "a/k", f"a{number}", replayed=False)
    assert len(run_all(slots)) == 4
    slots.offer("b", "b/k", "b0", replayed=False)
    slots.done("a", "a/k", replayed=False)
    slots.done("a", "a/k", replayed=False)
    assert "b0" in run_all(slots)


def test_a_drain_takes_everything_that_waits() -> None:
    slots: Slots[str] = Slots(Caps(1, None, {}, 1))
    for number in range(5):
        slots.offer("a", "a/k", str(number), replayed=number % 2 == 1)
    started = slots.next()
    assert sorted([started, *slots.drain()], key=str) == [str(number) for number in range(5)]
    assert slots.next() is None
    assert slots.waiting == 0


def test_a_tenant_whose_sinks_all_hang_leaves_slots_for_whoever_comes() -> None:
    slots: Slots[str] = Slots(Caps(32, 8, {}, 32))
    for sink in range(10):
        for number in range(50):
            slots.offer("a", f"a/{sink}", f"a{sink}-{number}", replayed=number % 2 == 1)
    assert len(run_all(slots)) == 31
    for number in range(100):
        slots.offer("b", "b/k", f"b{number}", replayed=False)
    for number in range(100):
        assert run_all(slots) == [f"b{number}"]
        slots.done("b", "b/k", replayed=False)
    assert run_all(slots) == []
    slots.done("a", "a/0", replayed=False)
    assert len(run_all(slots)) == 1


def test_a_few_slots_are_one_tenants_to_take() -> None:
    for total in range(1, 17):
        slots: Slots[str] = Slots(Caps(total, None, {}, total))
        for number in range(20):
            slots.offer("a", "a/k", str(number), replayed=False)
        assert len(run_all(slots)) == total
