"""One tenant's sink hangs for a minute and 500 of its rows wait: another tenant's 100 hooks are delivered as if it were
not there. On a real node with real sinks; what it measures is printed, and compared to nothing."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.support.http_sink import SinkServer
from tests.support.node import Node
from tests.support.node_process import poll

pytestmark = pytest.mark.fault

HANGS_MS = 60_000
ROWS_A, ROWS_B = 500, 100
CAPS = {"concurrency": 6, "max_inflight": 200}
SINK_CONCURRENCY = 8
"""`dispatch.sink_concurrency` as it is by default."""


def config(hung: SinkServer, well: SinkServer, caps: dict[str, int]) -> dict[str, Any]:
    def source(tenant: str, sink: SinkServer) -> dict[str, Any]:
        sinks = [{"type": "http", "url": sink.url, "timeout_ms": HANGS_MS}]
        return {"tenant": tenant, "verify": {"type": "none"}, "sinks": sinks}

    return {
        "dispatch": {"attempt_timeout_ms": HANGS_MS, "tenants": {"a": caps} if caps else {}},
        "sources": {"hangs": source("a", hung), "works": source("b", well)},
    }


def post(node: Node, source: str, count: int) -> list[str]:
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda _: node.post(source), range(count)))
    assert {answer.status for answer in answers} == {201}
    return [answer.json["id"] for answer in answers]


def claimed(node: Node, tenant: str) -> int:
    """Claimed rows of the tenant now."""
    return sum(one["claimed"] for one in node.get("/v1/stats")["tenants"] if one["tenant"] == tenant)


@pytest.mark.parametrize("caps", [CAPS, {}], ids=["with caps", "without"])
def test_a_tenant_whose_sink_hangs_harms_no_other(tmp_path: Path, caps: dict[str, int]) -> None:
    at_once, in_window = caps.get("concurrency", SINK_CONCURRENCY), caps.get("max_inflight", ROWS_A)
    with SinkServer() as hung, SinkServer() as well, Node(tmp_path, config(hung, well, caps)) as node:
        hung.behave(mode="hang")
        post(node, "hangs", ROWS_A)
        poll("attempts that hang", lambda: hung.in_flight == at_once)
        poll("a full window", lambda: claimed(node, "a") == in_window)
        began = time.monotonic()
        ids = post(node, "works", ROWS_B)
        accepted = time.monotonic()
        poll("every delivery of b", lambda: well.counts.keys() >= set(ids))
        ended = time.monotonic()
        print(f"{ROWS_B} hooks accepted in {accepted - began:.2f} s, the last delivered {ended - accepted:.2f} s later")
        assert well.counts.total() == ROWS_B
        assert hung.in_flight == hung.in_flight_max == hung.total == at_once, "a hung attempt ended, or one more began"
        poll("the end of b's claims", lambda: claimed(node, "b") == 0)
        assert claimed(node, "a") == in_window
        (lagging,) = node.get("/v1/stats?limit=1")["sinks"]
        assert (lagging["tenant"], lagging["pending"], lagging["dead"]) == ("a", ROWS_A, 0)
