"""A replay of 10,000 dead letters beside live hooks, its rate changed, its node killed in the middle."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from tests.fault import kill
from tests.support.dead_rows import bury
from tests.support.load import Load
from tests.support.marked_sink import SinkProcess
from tests.support.node import Node
from tests.support.node_process import poll
from tests.support.tally import count

pytestmark = pytest.mark.fault

DEAD = 10_000
RATE, SLOW = 2_000, 10
START: dict[str, Any] = {"kind": "dlq", "source_id": "hooks", "rate": RATE}


def job_of(node: Node, job_id: str) -> dict[str, Any]:
    job: dict[str, Any] = node.get(f"/v1/replays/{job_id}")
    return job


def wait_moved(node: Node, job_id: str, moved: int, within_s: float = 60) -> int:
    """Wait until so many rows have moved; how many really had."""
    poll(f"{moved} rows moved", lambda: job_of(node, job_id)["moved"] >= moved, within_s)
    return int(job_of(node, job_id)["moved"])


def change_rate(node: Node, job_id: str) -> None:
    """Slow the job down and up again: each shows within a second, in what it moves and not only in what it says."""
    assert node.admin("PATCH", f"/v1/replays/{job_id}", {"rate": SLOW}).status == 200
    time.sleep(1)
    began = time.monotonic()  # before it is asked: a machine that stands still there must not count against the job
    before = job_of(node, job_id)["moved"]
    time.sleep(1.5)
    moved, seconds = job_of(node, job_id)["moved"] - before, time.monotonic() - began
    print(f"rate {SLOW}: {moved} moved in {seconds:.1f} s, a second after the change")
    assert moved <= SLOW * (seconds + 1)
    before = job_of(node, job_id)["moved"]
    assert node.admin("PATCH", f"/v1/replays/{job_id}", {"rate": RATE}).json["rate"] == RATE
    began = time.monotonic()
    wait_moved(node, job_id, before + 10 * SLOW, 8)  # at the old rate, ten seconds' worth
    print(f"rate {RATE}: {10 * SLOW} moved within {time.monotonic() - began:.1f} s")


def latencies_ms(load: Load, sink: SinkProcess) -> list[int]:
    """From the sending of each accepted live hook to its first arrival, in order."""
    arrived: dict[str, int] = {}
    for arrival in sink.refresh().arrivals:
        arrived.setdefault(arrival.mark, arrival.at)
    return sorted(arrived[mark] - accepted.sent_at for mark, accepted in load.accepted.items())


def test_a_replay_goes_on_after_a_kill_and_moves_each_row_once(tmp_path: Path) -> None:
    ids = bury(tmp_path / "data", "hooks", DEAD, body=kill.BODY)
    with SinkProcess(tmp_path) as sink, Node(tmp_path, kill.config(sink)) as node:
        assert node.get("/v1/stats")["rows"]["dead"] == DEAD
        with kill.full_load(node, connections=8, per_second=50, name="alone") as alone:
            alone.wait_accepted(100)
        # Live hooks before the kill: posted all the while, none of them behind a replayed one.
        with kill.full_load(node, connections=8, per_second=50, name="before") as before:
            before.wait_accepted(10)
            started = node.admin("POST", "/v1/replays", START)
            assert started.status == 202, started
            job_id = started.json["id"]
            again = node.admin("POST", "/v1/replays", START)
            assert (again.status, again.json["id"]) == (200, job_id)
            wait_moved(node, job_id, 1_000)
            change_rate(node, job_id)
            wait_moved(node, job_id, DEAD // 2)
        poll("every live hook at the sink", lambda: before.ids <= sink.refresh().by_id.keys())
        moved = job_of(node, job_id)["moved"]
        assert moved < DEAD, "the replay ended before the live hooks were delivered"
        node.kill()
        node.start()
        resumed = job_of(node, job_id)
        assert resumed["state"] == "running"
        with kill.full_load(node, connections=8, per_second=50, name="after") as after:
            poll("the end of the replay", lambda: job_of(node, job_id)["state"] == "done", 120)
        print(f"killed at {moved} moved, resumed at {resumed['moved']}")

        wanted = {*ids, *alone.ids, *before.ids, *after.ids}
        poll("every hook at the sink", lambda: wanted <= sink.refresh().by_id.keys(), 120)
        poll("every outcome", lambda: job_of(node, job_id)["delivered"] == DEAD)
        job = job_of(node, job_id)
        assert job["moved"] == DEAD
        assert (job["dead"], job["skipped"], job["scanned"]) == (0, 0, DEAD)
        assert node.get("/v1/stats")["rows"] == {"pending": 0, "claimed": 0, "dead": 0, "replayed": 0}
        assert {arrival.id for arrival in sink.arrivals if arrival.replay_id == job_id} == set(ids)
        tally = count([alone, before, after], sink)
        doubled = sum(sink.by_id[hook_id] - 1 for hook_id in ids)
        print(f"live: {tally}; replayed: {DEAD} delivered, {doubled} twice")
        assert tally.lost == 0 and tally.refused_delivered == 0
        assert tally.duplicates <= kill.MAX_INFLIGHT  # what was claimed at the kill
        for name, load in (("alone", alone), ("beside the replay", before), ("after the kill", after)):
            found = latencies_ms(load, sink)
            p50, p99 = found[len(found) // 2], found[int(len(found) * 0.99)]
            print(f"live {name}: {len(found)} hooks, post to sink p50 {p50} ms, p99 {p99} ms")

        # A finished job of the same kind and filter is no obstacle to another, but for its id.
        named = node.admin("POST", "/v1/replays", {**START, "job_id": job_id})
        assert (named.status, named.json["id"], named.json["state"]) == (200, job_id, "done")
        other = node.admin("POST", "/v1/replays", {**START, "source_id": "others", "job_id": job_id})
        assert (other.status, other.json["field"]) == (400, "job_id")
