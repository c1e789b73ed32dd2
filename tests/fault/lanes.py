"""Lanes through kill -9 of the node and of its engine, at a sink that fails at random: order, loss and duplicates.

`python -m tests.fault.lanes` is the full size: 10,000 hooks over 100 ordering keys, five kills. Exit status 1 when a
hook was lost, a first delivery was out of its lane's commit order, more was doubled than was in flight, or a poison
hook held its lane.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from msgspec import Struct

from ankusa import clock
from tests.fault.lane_report import Kill, Lane, Report, Size
from tests.support.failing_sink import KEY_HEADER, POISON_HEADER, Event, FailingSink, What
from tests.support.load import Load
from tests.support.node import Node
from tests.support.node_process import poll
from tests.support.stillness import Stillness

POISON_EVERY = 97
"""One hook in so many is poison: some lanes have several, and no lane's are in step with another's."""

SLOW_ANSWER_MS = 10
"""What a sink takes for a delivery, so that something is in flight whenever a kill comes."""

UNREAD_MS = 250
"""How long after a kill the sink may still come to read what the dead process had sent: less than any restart takes."""

FULL = Size(hooks=10_000, keys=100, kills=5)


class Committed(Struct, frozen=True):
    """A hook as the node tells of it at the end."""

    seq: int
    outcomes: tuple[str, ...]


def config(sink: FailingSink) -> dict[str, Any]:
    """Slow timeouts, so that a machine which stands still doubles nothing; short breakers, so that some rows park."""
    return {
        "dispatch": {
            "concurrency": 64,
            "sink_concurrency": 64,
            "attempt_timeout_ms": 120_000,
            "breaker_open_ms": 100,
            "breaker_max_open_ms": 400,
            "retry": {"base_ms": 20, "max_ms": 500},
        },
        "sources": {
            "orders": {
                "verify": {"type": "none"},
                "sinks": [
                    {
                        "type": "http",
                        "url": sink.url,
                        "timeout_ms": 60_000,
                        "ordered": True,
                        "ordering_key": {"header": KEY_HEADER},
                    }
                ],
            }
        },
    }


def run(folder: Path, size: Size, seed: int = 4) -> Report:
    """Post the hooks as fast as the node takes them, kill it while it delivers, wait for the end, revive the dead."""

    def headers_of(number: int) -> Mapping[str, str]:
        poison = {POISON_HEADER: "yes"} if number % POISON_EVERY == 0 else {}
        return {KEY_HEADER: f"key-{number % size.keys:03d}", **poison}

    began = time.monotonic()
    stillness, sink = Stillness(), FailingSink(seed=seed, delay_ms=SLOW_ANSWER_MS)
    with stillness, sink, Node(folder, config(sink)) as node:
        with Load(node.http_port, "/webhooks/orders", vary=headers_of, most=size.hooks) as load:
            kills = [_kill(node, sink, size, number) for number in range(size.kills)]
            load.wait_accepted(size.hooks - len(load.accepted), 300)
        poll("the end of every row", lambda: _is_drained(node), 300)
        events = list(sink.events)
        committed = _committed(node, load.ids | {event.id for event in events})
        dead = node.get("/v1/stats")["rows"]["dead"]
        revived = _revive(node, sink, dead)
        stats = node.get("/v1/stats")
        healed = node.log().count("event=lanes_healed")
    accepted, asked, marks = load.ids, {event.id for event in events}, {event.mark for event in events}
    poison = {event.id for event in events if event.what is What.REFUSED}
    by_key: dict[str, list[Event]] = defaultdict(list)
    for event in events:
        by_key[event.key].append(event)
    killed = [(kill.began, kill.ended + UNREAD_MS + stillness.longest_ms) for kill in kills]
    lanes = {key: _judge(happened, committed, killed) for key, happened in by_key.items()}
    if accepted - asked:  # nobody knows their keys, and they are lost all the same
        lanes["?"] = Lane(len(accepted - asked), 0, 0, 0, [])
    return Report(
        size=size,
        accepted=len(load.accepted),
        unanswered=len(marks & load.unanswered),
        refused_delivered=len(marks & load.refused.keys()),
        requests=sum(event.what is not What.ANSWERED for event in events),
        failed=sum(event.what is What.FAILED for event in events),
        parks=sum(hook.outcomes.count("parked") for hook in committed.values()),
        poison=len(poison),
        dead=dead,
        wrongly_dead=sum("dead" in hook.outcomes for hook_id, hook in committed.items() if hook_id not in poison),
        lanes=lanes,
        kills=kills,
        healed=healed,
        left={**stats["rows"], **stats["lanes"]},
        revived=len({event.id for event in revived}),
        revived_disordered=_revived_disordered(revived, committed),
        still_ms=stillness.longest_ms,
        seconds=time.monotonic() - began,
    )


def _kill(node: Node, sink: FailingSink, size: Size, number: int) -> Kill:
    """Kill number `number` (from 0), once its share of the hooks has been delivered: an engine, or the whole node."""
    share = size.hooks * (number + 1) // (size.kills + 1)
    poll(f"{share} hooks delivered", lambda: len(sink.counts) >= share, 300)
    delivered, began, began_s = len(sink.counts), clock.now_ms(), time.monotonic()
    whole = number % 2 == 1
    if whole:
        node.kill()
    else:
        node.kill_one("engine_process")
    ended = clock.now_ms()
    if whole:
        node.start()
    else:
        poll("an engine again", lambda: node.pids("engine_process"))
        node.wait_ready()
    return Kill("node" if whole else "engine", began, ended, time.monotonic() - began_s, delivered)


def _is_drained(node: Node) -> bool:
    rows = node.get("/v1/stats")["rows"]
    return bool(rows["pending"] == rows["claimed"] == rows["replayed"] == 0)


def _committed(node: Node, ids: set[str]) -> dict[str, Committed]:
    return {
        hook_id: Committed(hook["seq"], tuple(line["outcome"] for line in hook["attempts"]))
        for hook_id, hook in node.hooks(ids).items()
    }


def _judge(events: list[Event], committed: Mapping[str, Committed], killed: list[tuple[int, int]]) -> Lane:
    """One lane's events, in the order they came, against the order of commit. `killed`: from when to when what a kill
    left in flight may have come."""
    seqs = {event.id: committed[event.id].seq for event in events}
    in_order = sorted(seqs, key=seqs.__getitem__)
    taken: dict[str, int] = {}
    asked: set[str] = set()
    ended: set[str] = set()
    overtaking, duplicates = 0, 0
    unexplained: list[str] = []
    for event in events:
        if event.what is What.ANSWERED or event.what is What.REFUSED:
            ended.add(event.id)
        if event.what is What.ANSWERED:
            continue
        if event.id not in asked:
            asked.add(event.id)
            overtaking += not ended.issuperset(in_order[: in_order.index(event.id)])
        if event.what is What.TOOK:
            if event.id in taken:
                duplicates += 1
                if not any(taken[event.id] <= end for begin, end in killed if begin <= event.at):
                    unexplained.append(f"{event.id} at {taken[event.id]} and {event.at}")
            taken[event.id] = event.at
    firsts = [seqs[hook_id] for hook_id in _first(events)]
    disordered = sum(later < max(firsts[:place]) for place, later in enumerate(firsts) if place)
    return Lane(len(asked - ended), disordered, overtaking, duplicates, unexplained)


def _first(events: list[Event]) -> list[str]:
    """Hooks in the order in which they were first taken, or refused for good."""
    return list(dict.fromkeys(event.id for event in events if event.what in (What.TOOK, What.REFUSED)))


def _revive(node: Node, sink: FailingSink, dead: int) -> list[Event]:
    """Replay every dead row to a sink that is well now; the deliveries."""
    sink.cured = True
    already = len(sink.events)
    job = node.admin("POST", "/v1/replays", {"kind": "dlq", "rate": 2_000}).json
    poll("every dead hook", lambda: node.get(f"/v1/replays/{job['id']}")["delivered"] >= dead, 120)
    poll("the end of every row", lambda: _is_drained(node))
    revived = [event for event in sink.events[already:] if event.what is What.TOOK]
    assert all(event.replay_id == job["id"] for event in revived), revived
    return revived


def _revived_disordered(revived: list[Event], committed: Mapping[str, Committed]) -> int:
    """Lanes whose dead hooks did not come back in the order in which they had died, which was that of their commit."""
    by_key: dict[str, list[int]] = defaultdict(list)
    for event in revived:
        by_key[event.key].append(committed[event.id].seq)
    return sum(seqs != sorted(seqs) for seqs in by_key.values())


def main() -> int:
    parser = argparse.ArgumentParser(description="Kill a node that delivers ordered hooks, again and again, and count.")
    parser.add_argument("--hooks", type=int, default=FULL.hooks)
    parser.add_argument("--keys", type=int, default=FULL.keys)
    parser.add_argument("--kills", type=int, default=FULL.kills)
    parser.add_argument("--seed", type=int, default=4)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="ankusa-lanes-", dir=Path.cwd()) as folder:
        report = run(Path(folder), Size(arguments.hooks, arguments.keys, arguments.kills), arguments.seed)
    print(report)
    return 0 if report.good else 1


if __name__ == "__main__":
    sys.exit(main())
