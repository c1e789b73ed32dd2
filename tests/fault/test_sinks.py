"""Sinks at their worst, all at once on one node: the state each row ends in, and a healthy sink unaffected."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec import Struct

from tests.support.http_sink import Behaviour, SinkServer
from tests.support.node import Node
from tests.support.node_process import poll

pytestmark = pytest.mark.fault

ATTEMPTS = 3
TIMEOUT_MS, PATIENT_MS = 1_500, 60_000
"""Of the sink that hangs, and of the others: none of those is to run out, however busy the machine."""

HANGING, HEALTHY = 20, 100
"""More hooks than `sink_concurrency` lets run at the sink that hangs: some wait behind those that do."""

METADATA = "http://169.254.169.254/latest/meta-data/"


class End(Struct, frozen=True):
    """What a row must come to: the outcomes of its attempts, and the error of a dead one."""

    outcomes: list[str]
    error_class: str | None = None
    error: str = ""


DELIVERED = End(["delivered"])

BAD: dict[str, tuple[Behaviour, End]] = {
    "hangs": (Behaviour(mode="hang"), End(["retry", "retry", "dead"], "timeout", f"no answer within {TIMEOUT_MS} ms")),
    "gone": (Behaviour(status=410), End(["dead"], "permanent", "HTTP 410")),
    # A status line has come, and it decides: what follows is nobody's business, however much or little.
    "endless": (Behaviour(mode="endless"), DELIVERED),
    "endless_error": (Behaviour(mode="endless", status=500), End(["retry", "retry", "dead"], "transient", "HTTP 500")),
    "closes_amid_ok": (Behaviour(mode="close_mid"), DELIVERED),
    "closes_amid_error": (Behaviour(mode="close_mid", status=404), End(["dead"], "permanent", "HTTP 404")),
    "closes_at_once": (Behaviour(mode="close_before"), End(["retry", "retry", "dead"], "transient")),
    "redirects": (
        Behaviour(status=307, headers={"location": METADATA}),
        End(["retry", "retry", "dead"], "transient", "HTTP 307, redirects are not followed"),
    ),
    "redirects_home": (Behaviour(), End(["retry", "retry", "dead"], "transient", "redirects are not followed")),
    "recovers": (Behaviour(), End(["retry", "retry", "delivered"])),
}


@contextlib.contextmanager
def node_with_sinks(folder: Path) -> Iterator[tuple[Node, dict[str, SinkServer]]]:
    """A node with a source a sink, each named for what the sink does, and one that is healthy."""
    with contextlib.ExitStack() as stack:
        sinks = {name: stack.enter_context(SinkServer()) for name in (*BAD, "healthy")}
        config: dict[str, Any] = {
            "dispatch": {
                "breaker_failures": 0,
                "attempt_timeout_ms": 2 * PATIENT_MS,
                "retry": {"base_ms": 50, "max_attempts": ATTEMPTS},
            },
            "sources": {
                name: {
                    "verify": {"type": "none"},
                    "sinks": [
                        {"type": "http", "url": sink.url, "timeout_ms": TIMEOUT_MS if name == "hangs" else PATIENT_MS}
                    ],
                }
                for name, sink in sinks.items()
            },
        }
        yield stack.enter_context(Node(folder, config)), sinks


def accepted(node: Node, source: str) -> str:
    answer = node.post(source)
    assert answer.status == 201, answer
    hook_id: str = answer.json["id"]
    return hook_id


def hook_of(node: Node, hook_id: str) -> dict[str, Any]:
    hook: dict[str, Any] = node.get(f"/v1/hooks/{hook_id}")
    return hook


def is_settled(node: Node, hook_id: str) -> bool:
    return all(row["state"] == "dead" for row in hook_of(node, hook_id)["rows"])


def behave(sinks: dict[str, SinkServer]) -> None:
    for name, (behaviour, _) in BAD.items():
        sinks[name].behave(**msgspec.structs.asdict(behaviour))
    sinks["redirects_home"].behave(status=302, headers={"location": sinks["healthy"].url})
    sinks["recovers"].script(Behaviour(status=500), Behaviour(status=503))


def check_end(node: Node, hook_id: str, end: End, sink: SinkServer) -> None:
    """A hook's history and what is left of it, through the admin API, once it has come to its end."""
    poll(f"the end of {hook_id}", lambda: is_settled(node, hook_id))
    hook = hook_of(node, hook_id)
    assert [attempt["outcome"] for attempt in hook["attempts"]] == end.outcomes, hook
    assert [attempt["attempt"] for attempt in hook["attempts"]] == list(range(1, len(end.outcomes) + 1))
    listed = node.get(f"/v1/dlq?id={hook_id}")["entries"]
    if end.error_class is None:
        assert (hook["rows"], listed) == ([], [])
        assert sink.counts[hook_id] == 1
        return
    (row,), (entry,) = hook["rows"], listed
    assert (row["state"], row["error_class"], row["attempts"]) == ("dead", end.error_class, len(end.outcomes))
    assert end.error in row["error"]
    assert (entry["error_class"], entry["reason"], entry["attempts"]) == (
        end.error_class,
        row["error"],
        row["attempts"],
    )


def test_each_bad_sink_ends_as_it_must_and_a_healthy_one_is_not_held_up(tmp_path: Path) -> None:
    with node_with_sinks(tmp_path) as (node, sinks):
        behave(sinks)
        hanging = [accepted(node, "hangs") for _ in range(HANGING)]
        poll("attempts that hang", lambda: sinks["hangs"].in_flight >= 8)
        posted = {name: accepted(node, name) for name in BAD if name != "hangs"}
        healthy = [accepted(node, "healthy") for _ in range(HEALTHY)]
        poll("every delivery to the healthy sink", lambda: sinks["healthy"].counts.keys() >= set(healthy))
        assert not is_settled(node, hanging[-1]), "the healthy sink was waited for too long: nothing hangs any more"
        assert sinks["healthy"].counts.total() == HEALTHY

        for name, hook_id in posted.items():
            check_end(node, hook_id, BAD[name][1], sinks[name])
        for hook_id in hanging:
            check_end(node, hook_id, BAD["hangs"][1], sinks["hangs"])
        assert sinks["hangs"].in_flight_max <= 8  # `sink_concurrency`
        assert sinks["redirects"].total == sinks["redirects_home"].total == ATTEMPTS
        assert sinks["healthy"].total == HEALTHY  # nobody was sent on to it
        rows = node.get("/v1/stats")["rows"]
        assert (rows["pending"], rows["claimed"]) == (0, 0)
