"""Rate limits: where a limit comes from, overrides, and what a limit may be."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from schemas import records
from schemas.append import Answer, AnswerStatus, Submission
from schemas.config import Config, RateLimit, RateLimits
from schemas.records import Envelope
from tests.unit.api.node import START, Node

CONFIG = Config(
    rate_limits=RateLimits(default=RateLimit(rate=10, burst=20), tenants={"acme": RateLimit(rate=5, burst=6)})
)


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    with Node(tmp_path, config=CONFIG) as made:
        yield made


def limit_of(node: Node, tenant: str) -> Any:
    return node.get(f"/v1/tenants/{tenant}/rate-limit")


def test_a_limit_says_where_it_comes_from(node: Node, tmp_path: Path) -> None:
    assert limit_of(node, "acme") == {"tenant": "acme", "rate": 5.0, "burst": 6, "source": "config"}
    assert limit_of(node, "globex") == {"tenant": "globex", "rate": 10.0, "burst": 20, "source": "default"}
    with Node(tmp_path / "other") as unlimited:
        assert limit_of(unlimited, "acme") == {"tenant": "acme", "rate": None, "burst": None, "source": "none"}
        assert unlimited.get("/v1/rate-limits") == {"default": None, "tenants": []}


def test_an_override_holds_at_once_and_is_taken_back(node: Node) -> None:
    reply = node.ask("PUT", "/v1/tenants/acme/rate-limit", {"rate": 0.5, "burst": 1})
    assert (reply.status, reply.json) == (200, {"tenant": "acme", "rate": 0.5, "burst": 1, "source": "override"})
    assert limit_of(node, "acme")["source"] == "override"
    dropped = node.ask("DELETE", "/v1/tenants/acme/rate-limit")
    assert (dropped.status, dropped.body) == (204, b"")
    assert limit_of(node, "acme")["source"] == "config"
    again = node.ask("DELETE", "/v1/tenants/acme/rate-limit")
    assert (again.status, again.json) == (404, {"error": "rate_limit_not_found"})


def test_the_list_has_every_tenant_with_a_limit_of_its_own(node: Node) -> None:
    node.ask("PUT", "/v1/tenants/zeta/rate-limit", {"rate": 1, "burst": 2})
    assert node.get("/v1/rate-limits") == {
        "default": {"rate": 10.0, "burst": 20},
        "tenants": [
            {"tenant": "acme", "rate": 5.0, "burst": 6, "source": "config"},
            {"tenant": "zeta", "rate": 1.0, "burst": 2, "source": "override"},
        ],
    }


def test_an_override_decides_what_is_accepted(node: Node) -> None:
    node.ask("PUT", "/v1/tenants/acme/rate-limit", {"rate": 1, "burst": 2})

    async def post() -> list[Answer]:
        hooks = []
        for number in range(3):
            envelope = Envelope(f"hook-{number}", "orders", "acme", START, (), (), None, f"hook-{number}")
            hooks.append((Submission(envelope, b"{}"), records.encode(envelope)))
        return await node.parts.intake.append(hooks, START + 1000)

    assert [answer.status for answer in node.run(post)] == [
        AnswerStatus.ACCEPTED,
        AnswerStatus.ACCEPTED,
        AnswerStatus.RATE_LIMITED,
    ]


def test_overrides_survive_a_restart(tmp_path: Path) -> None:
    with Node(tmp_path, config=CONFIG) as node:
        node.ask("PUT", "/v1/tenants/acme/rate-limit", {"rate": 7, "burst": 8})
        node.ask("PUT", "/v1/tenants/globex/rate-limit", {"rate": 7, "burst": 8})
        node.ask("DELETE", "/v1/tenants/globex/rate-limit")
    with Node(tmp_path, config=CONFIG) as node:
        assert limit_of(node, "acme") == {"tenant": "acme", "rate": 7.0, "burst": 8, "source": "override"}
        assert limit_of(node, "globex")["source"] == "default"


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "rate"),
        ({"rate": 1}, "burst"),
        ({"burst": 1}, "rate"),
        ({"rate": 0, "burst": 1}, "rate"),
        ({"rate": -1, "burst": 1}, "rate"),
        ({"rate": 1_000_001, "burst": 1}, "rate"),
        ({"rate": True, "burst": 1}, "rate"),
        ({"rate": "5", "burst": 1}, "rate"),
        ({"rate": None, "burst": 1}, "rate"),
        ({"rate": 1, "burst": 0}, "burst"),
        ({"rate": 1, "burst": 1.5}, "burst"),
        ({"rate": 1, "burst": True}, "burst"),
        ({"rate": 1, "burst": "1"}, "burst"),
        ({"rate": 1, "burst": 10**30}, "burst"),
        ({"rate": 1, "burst": 1, "source": "override"}, "source"),
    ],
)
def test_a_wrong_limit_is_400_and_changes_nothing(node: Node, body: dict[str, Any], field: str) -> None:
    reply = node.ask("PUT", "/v1/tenants/acme/rate-limit", body)
    assert reply.status == 400
    assert (reply.json["error"], reply.json["field"]) == ("invalid_rate_limit", field)
    assert reply.json["message"]
    assert limit_of(node, "acme")["source"] == "config"


@pytest.mark.parametrize("raw", [b'{"rate": 1e999, "burst": 1}', b'{"rate": 1e400, "burst": 1e400}'])
def test_a_number_without_end_is_400(node: Node, raw: bytes) -> None:
    reply = node.ask("PUT", "/v1/tenants/acme/rate-limit", raw)
    assert (reply.status, limit_of(node, "acme")["source"]) == (400, "config")


def test_a_whole_burst_may_be_written_as_a_decimal(node: Node) -> None:
    assert node.ask("PUT", "/v1/tenants/acme/rate-limit", b'{"rate": 1, "burst": 2.0}').json["burst"] == 2


@pytest.mark.parametrize("tenant", ["a.b", "a%20b", "a" * 65, "%C3%A4", "a%0A"])
def test_a_name_that_is_no_tenant_is_400(node: Node, tenant: str) -> None:
    for method, body in (("GET", None), ("PUT", {"rate": 1, "burst": 1}), ("DELETE", None)):
        reply = node.ask(method, f"/v1/tenants/{tenant}/rate-limit", body)
        assert (reply.status, reply.json["error"], reply.json["field"]) == (400, "invalid_tenant", "tenant")
