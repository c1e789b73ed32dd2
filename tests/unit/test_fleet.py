"""Replays over several nodes: what is asked of them, and how their answers are judged together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from ankusa.replay.fleet import Fleet, Report, parse_filters, parse_nodes, succeeded
from tests.support.fake_node import JOB, FakeNode, serving


def quiet(reports: Sequence[Report]) -> None:
    """A view that shows nothing."""


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("http://a:4002", [("a", 4002, False, "")]),
        ("a:4002, https://b/ankusa/,", [("a", 4002, False, ""), ("b", 443, True, "/ankusa")]),
        ("http://[::1]:4002", [("::1", 4002, False, "")]),
    ],
)
def test_nodes(text: str, expected: list[tuple[str, int, bool, str]]) -> None:
    assert [(node.host, node.port, node.secure, node.prefix) for node in parse_nodes(text)] == expected


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "at least one"),
        (" , ", "at least one"),
        ("ftp://a", "http://host:port"),
        ("http://", "http://host:port"),
        ("http://a:port", "a:port"),
        ("http://a:99999", "99999"),
        ("http://me:hunter22@a:4002", "token"),
        ("http://a:1/?x=1", "address alone"),
        ("a:1,http://a:1", "twice"),
    ],
)
def test_nodes_that_are_none(text: str, words: str) -> None:
    with pytest.raises(ValueError, match=words) as caught:
        parse_nodes(text)
    assert "hunter22" not in str(caught.value)


def test_filters() -> None:
    pairs = [
        "source_id=acme.orders",
        "since=1700000000000",
        "sink=0",
        "tenants=b,a",
        "tenants=c",
        "error_class=timeout",
    ]
    assert parse_filters(pairs) == {
        "source_id": "acme.orders",
        "since": 1_700_000_000_000,
        "sink": 0,
        "tenants": ["b", "a", "c"],
        "error_class": "timeout",
    }
    assert parse_filters(["id=a=b"]) == {"id": "a=b"}


@pytest.mark.parametrize(
    ("pairs", "words"),
    [
        (["source_id"], "key=value"),
        (["=x"], "key=value"),
        (["since="], "key=value"),
        (["since=yesterday"], "since: must be a whole number"),
        (["sink=first"], "sink"),
        (["id=a", "id=b"], "twice"),
    ],
)
def test_filters_that_are_none(pairs: list[str], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        parse_filters(pairs)


def test_starts_one_job_on_each_node_with_the_token() -> None:
    first, second = FakeNode((202, JOB)), FakeNode((200, {**JOB, "state": "done"}))
    with serving(first) as a, serving(second) as b:
        reports = Fleet([a, b], "s3cret").start({"kind": "dlq", "job_id": JOB["id"]})
    assert [(report.state, report.created) for report in reports] == [("running", True), ("done", False)]
    for node in (first, second):
        assert node.asked == [("POST", "/v1/replays", "Bearer s3cret", {"kind": "dlq", "job_id": JOB["id"]})]
    assert succeeded(reports, watched=False)
    assert not succeeded(reports, watched=True)


@pytest.mark.parametrize(
    ("status", "answer", "words"),
    [
        (400, {"error": "invalid_filter", "field": "since", "message": "must be a unix time"}, "since must be"),
        (401, {"error": "unauthorized"}, "ANKUSA_TOKEN"),
        (409, {"error": "role_not_enabled", "role": "dispatch"}, "role_not_enabled: dispatch"),
        (429, {"error": "too_many_replays", "limit": 16}, "too_many_replays: 16"),
        (200, b"<html>", "no JSON object"),
        (302, {}, "answered 302"),
    ],
)
def test_a_refusal_fails_that_node_alone(status: int, answer: Any, words: str) -> None:
    with serving(FakeNode((status, answer))) as bad, serving(FakeNode((202, JOB))) as good:
        reports = Fleet([bad, good]).start({"kind": "dlq"})
    assert [report.state for report in reports] == ["failed", "running"]
    assert words in (reports[0].trouble or "")
    assert not succeeded(reports, watched=False)


def test_a_node_that_is_away_fails_alone() -> None:
    gone = FakeNode((202, JOB))
    with serving(gone) as away:
        pass
    with serving(FakeNode((202, JOB))) as good:
        reports = Fleet([away, good]).start({"kind": "dlq"})
    assert [report.state for report in reports] == ["failed", "running"]
    assert "cannot be reached" in (reports[0].trouble or "")


def test_watches_to_the_end_and_over_a_node_that_is_away_for_a_while() -> None:
    steps = [(200, {**JOB, "moved": 5}), (503, {"error": "store_unavailable"}), (200, {**JOB, "state": "done"})]
    node = FakeNode((202, JOB), *steps)
    seen: list[str] = []
    with serving(node) as address:
        fleet = Fleet([address])
        reports = fleet.watch(fleet.start({"kind": "dlq"}), lambda now: seen.append(now[0].state), poll_s=0)
    assert seen == ["running", "running", "unreachable", "done"]
    assert succeeded(reports, watched=True)
    assert node.asked[-1][:2] == ("GET", f"/v1/replays/{JOB['id']}")


@pytest.mark.parametrize("state", ["paused", "cancelled", "failed"])
def test_a_watch_ends_unsuccessfully_when_the_job_does(state: str) -> None:
    with serving(FakeNode((202, JOB), (200, {**JOB, "state": state, "error": "dead sink"}))) as address:
        fleet = Fleet([address])
        reports = fleet.watch(fleet.start({"kind": "dlq"}), quiet, poll_s=0)
    assert reports[0].state == state
    assert not succeeded(reports, watched=True)


def test_a_paused_job_is_watched_while_another_runs() -> None:
    paused = FakeNode((202, {**JOB, "state": "paused"}), (200, {**JOB, "state": "done"}))
    running = FakeNode((202, JOB), (200, {**JOB, "state": "done"}))
    with serving(paused) as a, serving(running) as b:
        fleet = Fleet([a, b])
        reports = fleet.watch(fleet.start({"kind": "dlq"}), quiet, poll_s=0)
    assert succeeded(reports, watched=True)


def test_a_node_that_stays_away_or_forgot_the_job_is_given_up() -> None:
    with serving(FakeNode((202, JOB), (503, {"error": "store_unavailable"}))) as address:
        fleet = Fleet([address])
        reports = fleet.watch(fleet.start({"kind": "dlq"}), quiet, poll_s=0, give_up_s=0)
        assert (reports[0].state, reports[0].lost) == ("failed", True)
    with serving(FakeNode((202, JOB), (404, {"error": "replay_not_found"}))) as address:
        fleet = Fleet([address])
        reports = fleet.watch(fleet.start({"kind": "dlq"}), quiet, poll_s=0)
        assert (reports[0].state, reports[0].trouble) == ("failed", "answered 404 replay_not_found")


def test_a_plan_is_asked_for_and_kept() -> None:
    plan = {"dry_run": True, "count": 3, "by_sink": {"t/s/0/http": 3}, "skipped": 0, "duration_ms": 3}
    node = FakeNode((200, plan))
    with serving(node) as address:
        reports = Fleet([address]).start({"kind": "dlq", "dry_run": True})
    assert reports[0].plan == plan
    assert succeeded(reports, watched=False)
