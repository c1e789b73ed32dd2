"""The routes of replay jobs: every value of the operator as its status and body."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from schemas.config import Config
from schemas.config import Node as NodeConfig
from tests.unit.api.node import START, Node

UUID = "11111111-1111-7111-8111-111111111111"
SPEC_FIELDS = {
    *("id", "kind", "state", "filter", "rate", "max_lag_ms", "created_at", "updated_at", "finished_at", "scanned"),
    *("moved", "skipped", "delivered", "dead", "remaining", "eta_ms", "throttled", "held", "error"),
}


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    with Node(tmp_path) as made:
        yield made


def start(node: Node, **spec: Any) -> Any:
    reply = node.ask("POST", "/v1/replays", {"kind": "dlq", **spec})
    assert reply.status == 202, reply
    return reply.json


def test_a_start_is_202_and_the_same_again_200_with_the_same_job(node: Node) -> None:
    node.dead()
    job = start(node, source_id="orders", rate=500)
    assert set(job) == SPEC_FIELDS
    assert job == job | {"kind": "dlq", "state": "running", "filter": {"source_id": "orders"}, "rate": 500}
    assert (job["remaining"], job["created_at"], job["error"]) == (1, START + 1, None)
    again = node.ask("POST", "/v1/replays", {"kind": "dlq", "source_id": "orders"})
    assert (again.status, again.json) == (200, job)
    assert node.get(f"/v1/replays/{job['id']}") == job
    assert node.get("/v1/replays") == {"replays": [job]}


def test_a_named_start_answers_the_job_of_that_name_whatever_its_state(node: Node) -> None:
    job = start(node, job_id=UUID)
    assert job["id"] == UUID
    node.ask("PATCH", f"/v1/replays/{UUID}", {"state": "cancelled"})
    again = node.ask("POST", "/v1/replays", {"kind": "dlq", "job_id": UUID})
    assert (again.status, again.json["state"]) == (200, "cancelled")
    other = node.ask("POST", "/v1/replays", {"kind": "dlq", "job_id": UUID, "sink": 1})
    assert (other.status, other.json["field"]) == (400, "job_id")


def test_a_dry_run_is_a_plan_and_starts_nothing(node: Node) -> None:
    node.dead(source="orders")
    node.dead(source="bills")
    reply = node.ask("POST", "/v1/replays", {"kind": "dlq", "dry_run": True, "rate": 1})
    assert reply.status == 200
    plan = reply.json
    assert plan == plan | {
        "dry_run": True,
        "count": 2,
        "by_source": {"bills": 1, "orders": 1},
        "by_sink": {"acme/bills/0/http": 1, "acme/orders/0/http": 1},
        "oldest_at": START + 1,
        "newest_at": START + 2,
        "duration_ms": 2000,
    }
    assert node.get("/v1/replays") == {"replays": []}


@pytest.mark.parametrize(
    ("spec", "field"),
    [
        ({}, "kind"),
        ({"kind": "nope"}, "kind"),
        ({"kind": "archive", "from": 1, "to": 2}, "kind"),
        ({"kind": "dlq", "rate": 0}, "rate"),
        ({"kind": "dlq", "rate": True}, "rate"),
        ({"kind": "dlq", "max_lag_ms": 99}, "max_lag_ms"),
        ({"kind": "dlq", "tenants": []}, "tenants"),
        ({"kind": "dlq", "job_id": "X"}, "job_id"),
        ({"kind": "dlq", "from": 1}, "from"),
        ({"kind": "dlq", "x" * 100: 1}, "x" * 64),
        ({"kind": "dlq", "since": 2, "until": 1}, "until"),
    ],
)
def test_a_wrong_start_is_400_naming_the_field(node: Node, spec: dict[str, Any], field: str) -> None:
    reply = node.ask("POST", "/v1/replays", spec)
    assert reply.status == 400
    assert (reply.json["error"], reply.json["field"]) == ("invalid_filter", field)
    assert reply.json["message"]


def test_too_many_unfinished_jobs_is_429(node: Node) -> None:
    for sink in range(16):
        start(node, sink=sink)
    reply = node.ask("POST", "/v1/replays", {"kind": "dlq", "sink": 16})
    assert (reply.status, reply.json) == (429, {"error": "too_many_replays", "limit": 16})


def test_a_node_without_the_role_is_409_naming_it(tmp_path: Path) -> None:
    with Node(tmp_path, config=Config(node=NodeConfig(roles=("edge", "storage")))) as node:
        reply = node.ask("POST", "/v1/replays", {"kind": "dlq"})
        assert (reply.status, reply.json) == (409, {"error": "role_not_enabled", "role": "dispatch"})


def test_a_patch_answers_the_job_after_it(node: Node) -> None:
    job = start(node)
    node.wall += 50
    path = f"/v1/replays/{job['id']}"
    paused = node.ask("PATCH", path, {"state": "paused", "rate": 7, "max_lag_ms": 100})
    assert paused.status == 200
    assert paused.json == job | {
        "state": "paused",
        "rate": 7,
        "max_lag_ms": 100,
        "updated_at": START + 50,
        "eta_ms": None,
    }
    assert node.ask("PATCH", path, {"state": "running"}).json["state"] == "running"
    assert node.ask("PATCH", path, {"state": "cancelled"}).json["finished_at"] == START + 50
    late = node.ask("PATCH", path, {"rate": 9})
    assert (late.status, late.json) == (409, {"error": "replay_finished"})


@pytest.mark.parametrize(
    ("patch", "field"),
    [({"state": "done"}, "state"), ({"rate": -1}, "rate"), ({"filter": {}}, "filter"), ({}, "body")],
)
def test_a_wrong_patch_is_400_naming_the_field(node: Node, patch: dict[str, Any], field: str) -> None:
    job = start(node)
    reply = node.ask("PATCH", f"/v1/replays/{job['id']}", patch)
    assert reply.status == 400
    assert (reply.json["error"], reply.json["field"]) == ("invalid_filter", field)


@pytest.mark.parametrize("job_id", ["nope", UUID, "%00", "a" * 5000])
def test_an_unknown_job_is_404(node: Node, job_id: str) -> None:
    for method, body in (("GET", None), ("PATCH", {"rate": 5})):
        reply = node.ask(method, f"/v1/replays/{job_id}", body)
        assert (reply.status, reply.json) == (404, {"error": "replay_not_found"})


def test_jobs_are_listed_newest_first(node: Node) -> None:
    made = []
    for sink in range(3):
        made.append(start(node, sink=sink)["id"])
        node.wall += 1
    assert [job["id"] for job in node.get("/v1/replays")["replays"]] == made[::-1]
