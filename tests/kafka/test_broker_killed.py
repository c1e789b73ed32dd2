"""A broker killed -9 under load and started again: edges refuse quickly, resume by themselves, and lose and double
nothing that they acknowledged."""

from __future__ import annotations

import statistics
import time
from collections import Counter
from pathlib import Path

import pytest

from streams.kafka.topic_admin import TopicAdmin
from streams.kafka.topics import TopicNames
from tests.kafka import cluster
from tests.kafka.edge_log import ids, stored_hooks
from tests.kafka.nodes import Served, serving
from tests.support import brokers
from tests.support.load import Load
from tests.support.node_process import poll

QUICK_S = 0.5
RESUMES_S = 30.0


@pytest.mark.fault
def test_edges_refuse_quickly_resume_and_keep_their_word(server: brokers.Kafka, tmp_path: Path) -> None:
    config = cluster.configuration(cluster.address(server))
    TopicAdmin(config).create()
    with serving(tmp_path / "node", config) as node, Load(node.http_port, "/webhooks/orders") as load:
        for _ in range(2):
            load.wait_accepted(500)
            server.kill()
            killed_s = time.monotonic()
            load.wait_refused(1)
            refused_after_s = time.monotonic() - killed_s
            poll("an edge that says it is not ready", lambda: not node.ready())
            # All but the one that is let in to try are refused at once.
            times_s = [refused_in_s(node) for _ in range(15)]
            server.start_again()
            started_s = time.monotonic()
            load.wait_accepted(1, RESUMES_S)
            resumed_after_s = time.monotonic() - started_s
            print(
                f"refused {refused_after_s:.2f} s after the kill, then within {statistics.median(times_s) * 1000:.1f} "
                f"ms; accepted {resumed_after_s:.2f} s after the broker was back"
            )
            assert statistics.median(times_s) < QUICK_S
            load.wait_accepted(200)
        load.stop()
        assert poll("a ready edge", node.ready)
        lines = len(node.log().splitlines())
    hooks = stored_hooks(cluster.address(server), TopicNames(config.kafka.prefix).hooks)
    stored = Counter(ids(hooks))
    assert {stored[hook_id] for hook_id in load.ids} == {1}
    unknown = len(stored) - len(load.ids)
    print(f"{len(load.ids)} acknowledged, each there once; {unknown} there that were not; {lines} lines of log")
    # What was refused while there was no broker to send it to is not delivered later.
    assert not any(b"in the outage" in hook.body for hook in hooks)
    assert set(load.answers) <= {201, 503}
    assert lines < 100


def refused_in_s(node: Served) -> float:
    began_s = time.monotonic()
    assert node.post("orders", {"posted": "in the outage"})[0] == 503
    return time.monotonic() - began_s
