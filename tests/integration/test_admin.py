"""The admin API of a real node: hooks posted, a sink that refuses, dead letters replayed, the pen, limits, tokens."""

from __future__ import annotations

import base64
import http.client
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.http_sink import SinkServer
from tests.support.node_process import NodeProcess, poll, serving

TOKENS = {"admin": "admin-token", "read": "read-token", "tenant:acme": "acme-token", "tenant:globex": "globex-token"}


@pytest.fixture
def sink() -> Iterator[SinkServer]:
    with SinkServer() as made:
        yield made


@pytest.fixture
def node(tmp_path: Path, sink: SinkServer) -> Iterator[NodeProcess]:
    to_sink = [{"type": "http", "url": f"http://127.0.0.1:{sink.port}/in"}]
    config: dict[str, Any] = {
        "admin": {"tokens": [{"token": token, "scopes": [scope]} for scope, token in TOKENS.items()]},
        "egress": {"allow": ["127.0.0.1/32"]},
        "sources": {
            "orders": {"tenant": "acme", "verify": {"type": "none"}, "sinks": to_sink},
            "bills": {"tenant": "globex", "verify": {"type": "none"}, "sinks": to_sink},
            "checked": {
                "tenant": "acme",
                "verify": {"type": "github", "secret": "clear-secret"},
                "on_verify_failure": "quarantine",
                "sinks": to_sink,
            },
        },
    }
    with serving(tmp_path, config) as made:
        yield made


def ask(node: NodeProcess, method: str, path: str, body: object = None, scope: str = "admin") -> tuple[int, Any]:
    connection = http.client.HTTPConnection("127.0.0.1", node.admin_port, timeout=20)
    try:
        headers = {"Authorization": f"Bearer {TOKENS[scope]}", "Content-Type": "application/json"}
        connection.request(method, path, None if body is None else json.dumps(body), headers)
        answer = connection.getresponse()
        raw = answer.read()
        is_json = answer.headers.get("content-type") == "application/json"
        return answer.status, json.loads(raw) if is_json else raw.decode()
    finally:
        connection.close()


def get(node: NodeProcess, path: str, scope: str = "admin") -> Any:
    status, answer = ask(node, "GET", path, scope=scope)
    assert status == 200, answer
    return answer


def test_dead_letters_are_listed_read_and_replayed(node: NodeProcess, sink: SinkServer) -> None:
    sink.behave(status=410)
    posted = {source: node.post(source, {"from": source})[1]["id"] for source in ("orders", "bills")}
    poll("two dead letters", lambda: get(node, "/v1/dlq")["total"] == 2)

    (mine,) = get(node, "/v1/dlq", "tenant:acme")["entries"]
    assert (mine["id"], mine["tenant_id"], mine["error_class"], mine["attempts"]) == (
        posted["orders"],
        "acme",
        "permanent",
        1,
    )
    assert "410" in mine["reason"]
    assert ask(node, "GET", f"/v1/hooks/{posted['bills']}", scope="tenant:acme")[0] == 404
    assert ask(node, "GET", f"/v1/hooks/{posted['orders']}?body=true", scope="read")[0] == 403
    hook = get(node, f"/v1/hooks/{posted['orders']}?body=true", "tenant:acme")
    assert json.loads(base64.b64decode(hook["body_base64"])) == {"from": "orders"}
    assert [line["outcome"] for line in hook["attempts"]] == ["dead"]

    sink.behave()
    status, job = ask(node, "POST", "/v1/replays", {"kind": "dlq"}, "tenant:acme")
    assert (status, job["filter"]) == (202, {"tenants": ["acme"]})
    poll("the replay's end", lambda: get(node, f"/v1/replays/{job['id']}")["delivered"] == 1)
    done = poll("the job done", lambda: (found := get(node, f"/v1/replays/{job['id']}"))["state"] == "done" and found)
    assert (done["moved"], done["dead"], done["remaining"]) == (1, 0, 0)
    assert get(node, "/v1/dlq")["entries"][0]["id"] == posted["bills"]
    assert get(node, "/v1/dlq")["total"] == 1
    assert sink.counts[posted["orders"]] == 1
    assert [line["outcome"] for line in get(node, f"/v1/hooks/{posted['orders']}")["attempts"]] == [
        "dead",
        "revived",
        "delivered",
    ]
    assert ask(node, "GET", f"/v1/replays/{job['id']}", scope="tenant:globex")[0] == 404

    metrics = get(node, "/metrics", "read")
    for line in (
        'ankusa_submissions_total{status="accepted"} 2.0',
        'ankusa_attempts_total{result="permanent"} 2.0',
        'ankusa_attempts_total{result="ok"} 1.0',
        'ankusa_outcomes_total{outcome="dead"} 2.0',
        'ankusa_rows{state="dead"} 1.0',
    ):
        assert line in metrics, line
    assert 'outcome="revived"' not in metrics  # one was, and nobody here counts it: the job does


def test_the_pen_is_listed_and_purged(node: NodeProcess) -> None:
    for number in range(3):
        assert node.post("checked", {"n": number})[0] == 202
    held = get(node, "/v1/quarantine", "tenant:acme")["entries"]
    assert len(held) == 3
    assert held[0]["received_at"] >= held[-1]["received_at"]
    assert {entry["source_id"] for entry in held} == {"checked"}
    assert get(node, "/v1/quarantine", "tenant:globex")["entries"] == []
    assert get(node, "/v1/quarantine")["total"] == 3
    status, purged = ask(node, "DELETE", "/v1/quarantine?limit=2", scope="tenant:acme")
    assert (status, purged["deleted"]) == (200, 2)
    (left,) = get(node, "/v1/quarantine")["entries"]
    assert left["id"] == held[0]["id"]


def test_an_override_limits_the_edge_at_once(node: NodeProcess) -> None:
    assert ask(node, "PUT", "/v1/tenants/acme/rate-limit", {"rate": 0.001, "burst": 1})[0] == 200
    statuses = [node.post("orders", {})[0] for _ in range(3)]
    assert statuses == [201, 429, 429]
    assert node.post("bills", {})[0] == 201
    assert ask(node, "DELETE", "/v1/tenants/acme/rate-limit")[0] == 204
    assert node.post("orders", {})[0] == 201


def test_the_configuration_as_shown_holds_no_secret(node: NodeProcess) -> None:
    shown = json.dumps(get(node, "/v1/config", "read"))
    assert "checked" in shown
    for secret in ("clear-secret", *TOKENS.values()):
        assert secret not in shown
    status, answer = ask(node, "GET", "/v1/config", scope="tenant:acme")
    assert (status, answer["error"]) == (403, "forbidden")
