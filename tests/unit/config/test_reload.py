"""What a reload takes up and what waits for a restart."""

from __future__ import annotations

from pathlib import Path

import pytest

from ankusa.config import ConfigError, reloadable_changes, taken_up, validate_dispatch
from schemas.config import Dispatch, Retry, TenantDispatch
from tests.unit.config.files import SOUND, load_text

TWO = "sources: {a: {verify: {type: none}, sinks: [{type: log}]}, b: {verify: {type: none}, sinks: [{type: log}]}}\n"


@pytest.mark.parametrize(
    ("new", "now", "later"),
    [
        (SOUND, [], []),
        (SOUND + "dispatch: {batch: 128}", [], []),
        (TWO, ["sources.b"], []),
        (SOUND.replace("none", "github, secret: x"), ["sources.a"], []),
        (SOUND.replace("{type: log}", "{type: log, retry: {max_ms: 5000}}"), ["sources.a"], []),
        (SOUND + "dispatch: {concurrency: 8}", ["dispatch.concurrency"], []),
        (SOUND + "dispatch: {sink_concurrency: null}", ["dispatch.sink_concurrency"], []),
        (SOUND + "dispatch: {tenants: {acme: {concurrency: 2}}}", ["dispatch.tenants.acme"], []),
        (SOUND + "rate_limits: {default: {rate: 5, burst: 5}}", ["rate_limits.default"], []),
        (SOUND + "rate_limits: {tenants: {acme: {rate: 5, burst: 5}}}", ["rate_limits.tenants.acme"], []),
        (SOUND + "egress: {allow: [127.0.0.1]}", ["egress.allow"], []),
        (SOUND + "admin: {tokens: [{token: abc, scopes: [read]}]}", ["admin.tokens"], []),
        (SOUND + "node: {edges: 2}", [], ["node.edges"]),
        (SOUND + "http: {port: 1}", [], ["http.port"]),
        (SOUND + "admin: {port: 1}", [], ["admin.port"]),
        (SOUND + "log: {level: debug}", [], ["log.level"]),
        (SOUND + "dispatch: {batch: 1}", [], ["dispatch.batch"]),
        (SOUND + "dispatch: {retry: {max_attempts: 1}}", [], ["dispatch.retry.max_attempts"]),
        (SOUND + "batcher: {max_queue: 1}", [], ["batcher.max_queue"]),
        (SOUND + "quarantine: {burst: 1}", [], ["quarantine.burst"]),
        (
            TWO + "http: {port: 1}\ndispatch: {concurrency: 8, batch: 1}",
            ["dispatch.concurrency", "sources.b"],
            ["dispatch.batch", "http.port"],
        ),
    ],
)
def test_changes(tmp_path: Path, new: str, now: list[str], later: list[str]) -> None:
    before, after = load_text(tmp_path, SOUND), load_text(tmp_path, new)
    assert reloadable_changes(before, after) == (now, later)
    assert reloadable_changes(after, before) == (now, later)


def test_what_needs_a_restart_is_not_taken_up_with_the_rest(tmp_path: Path) -> None:
    before = load_text(tmp_path, SOUND)
    new = load_text(
        tmp_path,
        TWO + "http: {port: 1}\nlog: {level: debug}\nadmin: {port: 2, tokens: [{token: abc, scopes: [read]}]}\n"
        "dispatch: {concurrency: 8, batch: 1, retry: {max_attempts: 1}}\n",
    )
    running = taken_up(before, new)
    assert reloadable_changes(before, running) == (["admin.tokens", "dispatch.concurrency", "sources.b"], [])
    later = ["admin.port", "dispatch.batch", "dispatch.retry.max_attempts", "http.port", "log.level"]
    assert reloadable_changes(running, new) == ([], later)  # named again at each reload until the restart
    assert taken_up(running, before) == before


REACHED = SOUND + "admin: {ip: 0.0.0.0, tokens: [{token: abc, scopes: [read]}]}"
ROUTES_REACHED = SOUND + "admin: {tokens: [{token: abc, scopes: [read]}]}\n"
ROUTES_REACHED += "routes: {enabled: true, admin: {ip: 0.0.0.0}}"


@pytest.mark.parametrize(
    "now",
    [REACHED, ROUTES_REACHED, REACHED + "\nroutes: {enabled: true, admin: {ip: 0.0.0.0}}"],
    ids=["admin", "routes", "both"],
)
def test_tokens_stay_while_others_reach_the_listener(tmp_path: Path, now: str) -> None:
    running = load_text(tmp_path, now)
    with pytest.raises(ConfigError, match=r"admin\.tokens: cannot all go while the node listens on 0\.0\.0\.0"):
        taken_up(running, load_text(tmp_path, SOUND))
    other = load_text(tmp_path, SOUND + "admin: {tokens: [{token: xyz, scopes: [read]}]}")
    assert taken_up(running, other).admin.tokens == other.admin.tokens


def test_tokens_may_go_where_nobody_else_comes(tmp_path: Path) -> None:
    running = load_text(tmp_path, SOUND + "admin: {tokens: [{token: abc, scopes: [read]}]}")
    assert not taken_up(running, load_text(tmp_path, SOUND)).admin.tokens


def test_a_renamed_source_is_two_changes(tmp_path: Path) -> None:
    before, after = load_text(tmp_path, SOUND), load_text(tmp_path, SOUND.replace("{a:", "{c:"))
    assert reloadable_changes(before, after) == (["sources.a", "sources.c"], [])


@pytest.mark.parametrize(
    ("dispatch", "fields"),
    [
        (Dispatch(batch=0), ["dispatch.batch"]),
        (Dispatch(batch=5000), ["dispatch.batch"]),
        (Dispatch(concurrency=0), ["dispatch.concurrency"]),
        (Dispatch(sink_concurrency=0), ["dispatch.sink_concurrency"]),
        (Dispatch(max_inflight=0), ["dispatch.max_inflight"]),
        (Dispatch(max_inflight_bytes=-1), ["dispatch.max_inflight_bytes"]),
        (Dispatch(attempt_timeout_ms=0), ["dispatch.attempt_timeout_ms"]),
        (Dispatch(tenants={"acme": TenantDispatch(concurrency=0)}), ["dispatch.tenants.acme.concurrency"]),
        (Dispatch(tenants={"a b": TenantDispatch()}), ["dispatch.tenants.a b"]),
        (Dispatch(retry=Retry(base_ms=0)), ["dispatch.retry.base_ms"]),
        (Dispatch(retry=Retry(max_elapsed_ms=0)), ["dispatch.retry.max_elapsed_ms"]),
        (Dispatch(retry=Retry(base_ms=10, max_ms=5)), ["dispatch.retry.base_ms"]),
        (Dispatch(batch=0, retry=Retry(max_attempts=0)), ["dispatch.batch", "dispatch.retry.max_attempts"]),
    ],
)
def test_validate_dispatch_names_each_bad_key(dispatch: Dispatch, fields: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        validate_dispatch(dispatch)
    assert [problem.field for problem in caught.value.problems] == fields


def test_validate_dispatch_takes_the_defaults_and_the_limits() -> None:
    validate_dispatch(Dispatch())
    validate_dispatch(Dispatch(batch=1, concurrency=4096, sink_concurrency=None, tenants={"default": TenantDispatch()}))
