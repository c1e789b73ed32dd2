"""A fleet under load while parts of it are taken away: every acknowledged hook delivered, and what each event cost.

`python -m tests.kafka.fleet --hooks 50000`: three brokers, two edges, two workers and a counting sink, all processes.
In turn a worker is killed with -9 and started again, one is stopped past its session and let go on, a broker is killed,
all brokers are gone for two minutes, a third worker joins, and the broker that coordinates the group is killed.
Meanwhile the sink refuses one source's hooks, whose attempts have to go on through all of it. Prints the counts; exit
status 1 when they do not add up.
"""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from msgspec import Struct

from ankusa.clock import now_ms
from tests.kafka.fleet_book import Places, read_book
from tests.kafka.fleet_report import Event, Report, report
from tests.kafka.fleet_stack import Size, Stack, running
from tests.kafka.folding import until
from tests.support.brokers import Kafka
from tests.support.load import Load

WATCHED_S = 120.0
"""How long it is waited for delivery to resume: longer than it may take, so that a slow one is measured."""

SETTLES_S = 600.0


class Plan(Struct, frozen=True):
    """What is done. `unlucky`: so many hooks of the source whose sink refuses until all is over. `calm_ms`: how long an
    event is watched after every partition delivers again, since another rebalance may follow."""

    hooks: int
    events: tuple[Callable[[Run], None], ...]
    unlucky: int = 40
    outage_s: float = 120.0
    calm_ms: int = 4000


class Run:
    """One run of a plan: what was done when."""

    def __init__(self, stack: Stack, plan: Plan, loads: list[Load], places: Places) -> None:
        self.stack, self.plan, self.loads, self.places = stack, plan, loads, places
        self.events: list[Event] = []

    @property
    def accepted(self) -> int:
        return sum(len(load.accepted) for load in self.loads)

    @contextmanager
    def event(self, name: str, *, after: bool = False) -> Iterator[None]:
        """Something is done within; then every partition takes and delivers again by itself. Delivery has to resume
        from the beginning on, or `after` what is done within: brokers that are away take nothing."""
        event = Event(name, now_ms(), 0)
        self.events.append(event)
        say(f"{name} ({self.accepted} accepted, {len(self.stack.sink.refresh().delivered)} delivered)")
        yield
        done_at = now_ms()
        event.back_at = done_at if after else event.at
        try:
            until(lambda: self._deliver_since(done_at), f"{name}: every partition delivers again", WATCHED_S)
        except AssertionError as error:  # the count will say so
            say(str(error))
        seen_at = now_ms()
        until(lambda: now_ms() - seen_at > self.plan.calm_ms, "a calm")
        event.until = now_ms()
        assert not self.stack.ended(), self.stack.ended()

    def _deliver_since(self, at: int) -> bool:
        """Whether each partition has delivered a hook that was sent since `at`: what was there before is no proof that
        the whole way is open."""
        self.places.refresh()
        delivered: dict[int | None, list[str]] = {}
        for asked in reversed(self.stack.sink.refresh().asked):
            if asked.at <= at:
                break
            delivered.setdefault(self.places.partition(asked.id), []).append(asked.id)
        if not delivered.keys() >= set(range(self.stack.size.partitions)):
            return False
        sent = {hook.id for load in self.loads for hook in list(load.accepted.values()) if hook.sent_at > at}
        return all(not sent.isdisjoint(ids) for number, ids in delivered.items() if number is not None)

    def wait_accepted(self, count: float) -> None:
        until(lambda: self.accepted >= count, f"{count:.0f} hooks accepted", SETTLES_S)


# -- what is done ---------------------------------------------------------------------


def worker_killed(run: Run) -> None:
    stack = run.stack
    with run.event("a worker killed with -9"):
        stack.workers["one"].kill()
        stack.workers.pop("one")
    with run.event("the worker started again, with its disk"):
        stack.add_worker("one")
        stack.wait_owned("one", 1, before=stack.owned("one"))


def worker_replaced(run: Run) -> None:
    with run.event("a worker killed with -9, another added"):
        run.stack.workers.pop("one").kill()
        run.stack.add_worker("three")
        run.stack.wait_owned("three", 1)


def worker_added(run: Run) -> None:
    with run.event("a worker added"):
        run.stack.add_worker("three")
        run.stack.wait_owned("three", 1)


def worker_stood_still(run: Run) -> None:
    """For longer than a session: others have its partitions when it goes on, and it knows nothing of that."""
    stack = run.stack
    other = next(name for name in stack.workers if name != "one")
    process = stack.workers["one"].process
    with run.event("a worker stopped, past its session, and let go on"):
        before = stack.owned(other)
        process.send_signal(signal.SIGSTOP)
        try:
            stack.wait_owned(other, 1, before)
        finally:
            process.send_signal(signal.SIGCONT)


def broker_killed(run: Run) -> None:
    """One that does not coordinate the group."""
    coordinator = run.stack.coordinator()
    _kill_broker(run, (coordinator + 1) % len(run.stack.servers), "a broker killed with -9")


def coordinator_killed(run: Run) -> None:
    _kill_broker(run, run.stack.coordinator(), "the group's coordinator killed with -9")


def _kill_broker(run: Run, place: int, name: str) -> None:
    server = run.stack.servers[place]
    with run.event(name):
        server.kill()
    with run.event("that broker started again"):
        server.start_again()
    until(run.stack.in_sync, "every copy is in sync", WATCHED_S)


def brokers_away(run: Run) -> None:
    servers, away_s = run.stack.servers, run.plan.outage_s
    with run.event(f"all brokers killed with -9, {away_s:.0f} s away", after=True):
        for server in servers:
            server.kill()
        gone = time.monotonic()
        until(lambda: time.monotonic() - gone > away_s, "the outage", away_s + 60)
        with ThreadPoolExecutor() as together:  # none is ready before most are there
            for _ in together.map(Kafka.start_again, servers):
                pass
    until(run.stack.in_sync, "every copy is in sync", WATCHED_S)


FULL = (worker_killed, worker_stood_still, broker_killed, brokers_away, worker_added, coordinator_killed)
SHORT = (worker_replaced, brokers_away)
EVENTS = {event.__name__: event for event in FULL}


# -- the run --------------------------------------------------------------------------


def run(folder: Path, size: Size, plan: Plan) -> Report:
    """Run the plan on a fleet in `folder`, and count."""
    with running(folder, size) as stack:
        places = Places(stack.fleet)
        stack.sink.behave(status=503)
        unlucky = stack.post_unlucky(plan.unlucky)
        with stack.loads() as loads:
            this = Run(stack, plan, loads, places)
            for number, event in enumerate(plan.events, 1):
                this.wait_accepted(plan.hooks * number / (len(plan.events) + 1))
                event(this)
            this.wait_accepted(plan.hooks)
        say(f"all done: {this.accepted} accepted")
        stack.sink.behave()
        _settle(stack, set().union(unlucky, *(load.ids for load in loads)))
        places.know(stack.sink.delivered)
        places.close()
        return report(loads, unlucky, stack.sink.asked, places, read_book(stack.fleet), this.events, stack.log_lines())


def _settle(stack: Stack, ids: set[str]) -> None:
    """Wait until all have arrived and nothing comes any more, or nothing has come for a minute: the count says it."""
    seen, since = -1, time.monotonic()
    while True:
        if len(stack.sink.refresh().asked) != seen:
            seen, since = len(stack.sink.asked), time.monotonic()
        quiet_s = time.monotonic() - since
        if quiet_s > 60 or (quiet_s > 3 and ids <= stack.sink.delivered.keys() and stack.fleet.everything_committed()):
            return
        time.sleep(0.2)


def say(what: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {what}", flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="A fleet under load while parts of it are taken away.")
    parser.add_argument("--hooks", type=int, default=50_000)
    parser.add_argument("--per-second", type=float, default=400.0, help="what the load offers")
    parser.add_argument("--outage-s", type=float, default=120.0, help="how long all brokers are away")
    parser.add_argument("--events", nargs="+", choices=EVENTS, default=list(EVENTS), help="what is done, in turn")
    parser.add_argument("--folder", type=Path, help="where to run, and keep every log (default: a temporary one)")
    given = parser.parse_args(arguments)
    events = tuple(EVENTS[name] for name in given.events)
    size, plan = Size(per_second=given.per_second), Plan(given.hooks, events, outage_s=given.outage_s)
    with tempfile.TemporaryDirectory(prefix="ankusa-fleet-") as temporary:
        began = time.monotonic()
        found = run(given.folder or Path(temporary), size, plan)
    print(f"{found}\nin {time.monotonic() - began:.0f} s: {'good' if found.good else 'NOT GOOD'}")
    return 0 if found.good else 1


if __name__ == "__main__":
    sys.exit(main())
