"""The OpenAPI document against the running server: every path answers, each answer as documented, none left out."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from schemas.config import Config, RateLimit, RateLimits, Sink, Source, SourceStore, Verify
from schemas.records import OutcomeKind
from tests.unit.api import schema
from tests.unit.api.node import Node, Reply, tokens

JOB = "11111111-1111-7111-8111-111111111111"
HOOK = "00000000-0000-7000-8000-000000000001"
CONFIG = Config(
    rate_limits=RateLimits(default=RateLimit(rate=10, burst=20)),
    sources={"orders": Source(name="orders", tenant="acme", verify=Verify(type="none"), sinks=(Sink(type="http"),))},
    source_store=SourceStore(type="persistent"),
)
SOURCES, SOURCE = "/v1/tenants/{tenant}/sources", "/v1/tenants/{tenant}/sources/{name}"
SPEC = {"name": "new", "sinks": [{"type": "http", "url": "https://example.com/"}]}

# Method, path as asked, path in the document, body, scope. At least one for every status of every operation but 503.
ASKED: list[tuple[str, str, str, object, str | None]] = [
    ("GET", "/health", "/health", None, None),
    ("GET", "/ready", "/ready", None, None),
    ("GET", "/metrics", "/metrics", None, "read"),
    ("GET", "/metrics", "/metrics", None, None),
    ("GET", "/metrics", "/metrics", None, "tenant:acme"),
    ("GET", "/openapi.json", "/openapi.json", None, "read"),
    ("GET", "/openapi.json", "/openapi.json", None, None),
    ("GET", "/openapi.json", "/openapi.json", None, "tenant:acme"),
    ("GET", "/v1/config", "/v1/config", None, "read"),
    ("GET", "/v1/config", "/v1/config", None, None),
    ("GET", "/v1/config", "/v1/config", None, "tenant:acme"),
    ("GET", "/v1/stats", "/v1/stats", None, "read"),
    ("GET", "/v1/stats", "/v1/stats", None, "tenant:acme"),
    ("GET", "/v1/stats", "/v1/stats", None, None),
    ("GET", "/v1/stats?limit=x", "/v1/stats", None, "read"),
    ("GET", "/v1/stats?breaker=open", "/v1/stats", None, "read"),
    ("GET", "/v1/lanes", "/v1/lanes", None, "read"),
    ("GET", "/v1/lanes", "/v1/lanes", None, "tenant:acme"),
    ("GET", "/v1/lanes", "/v1/lanes", None, None),
    ("GET", "/v1/lanes?cursor=!", "/v1/lanes", None, "read"),
    ("GET", "/v1/dlq", "/v1/dlq", None, "read"),
    ("GET", "/v1/dlq?limit=1", "/v1/dlq", None, "read"),
    ("GET", "/v1/dlq?cursor=x", "/v1/dlq", None, "read"),
    ("GET", "/v1/dlq", "/v1/dlq", None, None),
    ("GET", f"/v1/hooks/{HOOK}?body=true", "/v1/hooks/{hook_id}", None, "admin"),
    ("GET", f"/v1/hooks/{HOOK}?body=2", "/v1/hooks/{hook_id}", None, "admin"),
    ("GET", f"/v1/hooks/{HOOK}?body=true", "/v1/hooks/{hook_id}", None, "read"),
    ("GET", f"/v1/hooks/{HOOK}", "/v1/hooks/{hook_id}", None, None),
    ("GET", "/v1/hooks/nope", "/v1/hooks/{hook_id}", None, "admin"),
    ("POST", "/v1/replays", "/v1/replays", {"kind": "dlq", "job_id": JOB}, "admin"),
    ("POST", "/v1/replays", "/v1/replays", {"kind": "dlq", "job_id": JOB}, "admin"),
    ("POST", "/v1/replays", "/v1/replays", {"kind": "dlq", "dry_run": True}, "admin"),
    ("POST", "/v1/replays", "/v1/replays", {"kind": "dlq", "rate": 0}, "admin"),
    ("POST", "/v1/replays", "/v1/replays", {}, None),
    ("POST", "/v1/replays", "/v1/replays", {}, "read"),
    ("POST", "/v1/replays", "/v1/replays", b" " * ((1 << 20) + 1), "admin"),
    *(("POST", "/v1/replays", "/v1/replays", {"kind": "dlq", "sink": n}, "admin") for n in range(16)),
    ("GET", "/v1/replays", "/v1/replays", None, "read"),
    ("GET", "/v1/replays?x=1", "/v1/replays", None, "read"),
    ("GET", "/v1/replays", "/v1/replays", None, None),
    ("GET", f"/v1/replays/{JOB}", "/v1/replays/{job_id}", None, "read"),
    ("GET", f"/v1/replays/{JOB}", "/v1/replays/{job_id}", None, None),
    ("GET", f"/v1/replays/{JOB}", "/v1/replays/{job_id}", None, "tenant:acme"),
    ("PATCH", f"/v1/replays/{JOB}", "/v1/replays/{job_id}", {"rate": 0}, "admin"),
    ("PATCH", f"/v1/replays/{JOB}", "/v1/replays/{job_id}", {"rate": 5}, None),
    ("PATCH", f"/v1/replays/{JOB}", "/v1/replays/{job_id}", {"rate": 5}, "read"),
    ("PATCH", f"/v1/replays/{JOB}", "/v1/replays/{job_id}", {"rate": 5}, "tenant:acme"),
    ("PATCH", f"/v1/replays/{JOB}", "/v1/replays/{job_id}", b" " * ((1 << 20) + 1), "admin"),
    ("PATCH", f"/v1/replays/{JOB}", "/v1/replays/{job_id}", {"state": "cancelled"}, "admin"),
    ("PATCH", f"/v1/replays/{JOB}", "/v1/replays/{job_id}", {"rate": 5}, "admin"),
    ("GET", "/v1/quarantine", "/v1/quarantine", None, "read"),
    ("GET", "/v1/quarantine", "/v1/quarantine", None, "tenant:acme"),
    ("GET", "/v1/quarantine?since=x", "/v1/quarantine", None, "read"),
    ("GET", "/v1/quarantine", "/v1/quarantine", None, None),
    ("DELETE", "/v1/quarantine?limit=1", "/v1/quarantine", None, "admin"),
    ("DELETE", "/v1/quarantine?since=x", "/v1/quarantine", None, "admin"),
    ("DELETE", "/v1/quarantine", "/v1/quarantine", None, None),
    ("DELETE", "/v1/quarantine", "/v1/quarantine", None, "read"),
    ("GET", "/v1/rate-limits", "/v1/rate-limits", None, "read"),
    ("GET", "/v1/rate-limits", "/v1/rate-limits", None, None),
    ("PUT", "/v1/tenants/acme/rate-limit", "/v1/tenants/{tenant}/rate-limit", {"rate": 1, "burst": 1}, "admin"),
    ("PUT", "/v1/tenants/acme/rate-limit", "/v1/tenants/{tenant}/rate-limit", {"rate": 1}, "admin"),
    ("PUT", "/v1/tenants/acme/rate-limit", "/v1/tenants/{tenant}/rate-limit", {}, None),
    ("PUT", "/v1/tenants/acme/rate-limit", "/v1/tenants/{tenant}/rate-limit", {}, "tenant:acme"),
    ("PUT", "/v1/tenants/acme/rate-limit", "/v1/tenants/{tenant}/rate-limit", b" " * ((1 << 20) + 1), "admin"),
    ("GET", "/v1/tenants/acme/rate-limit", "/v1/tenants/{tenant}/rate-limit", None, "read"),
    ("GET", "/v1/tenants/a.b/rate-limit", "/v1/tenants/{tenant}/rate-limit", None, "read"),
    ("GET", "/v1/tenants/acme/rate-limit", "/v1/tenants/{tenant}/rate-limit", None, None),
    ("GET", "/v1/tenants/acme/rate-limit", "/v1/tenants/{tenant}/rate-limit", None, "tenant:globex"),
    ("DELETE", "/v1/tenants/a.b/rate-limit", "/v1/tenants/{tenant}/rate-limit", None, "admin"),
    ("DELETE", "/v1/tenants/acme/rate-limit", "/v1/tenants/{tenant}/rate-limit", None, None),
    ("DELETE", "/v1/tenants/acme/rate-limit", "/v1/tenants/{tenant}/rate-limit", None, "read"),
    ("DELETE", "/v1/tenants/acme/rate-limit", "/v1/tenants/{tenant}/rate-limit", None, "admin"),
    ("DELETE", "/v1/tenants/acme/rate-limit", "/v1/tenants/{tenant}/rate-limit", None, "admin"),
    ("POST", "/v1/tenants/acme/sources", SOURCES, SPEC, "tenant:acme"),
    ("POST", "/v1/tenants/acme/sources", SOURCES, SPEC, "admin"),
    ("POST", "/v1/tenants/acme/sources", SOURCES, {"name": "other", "sinks": [{"type": "http"}]}, "admin"),
    ("POST", "/v1/tenants/acme/sources", SOURCES, SPEC, None),
    ("POST", "/v1/tenants/acme/sources", SOURCES, SPEC, "read"),
    ("POST", "/v1/tenants/acme/sources", SOURCES, SPEC, "tenant:globex"),
    ("POST", "/v1/tenants/acme/sources", SOURCES, b" " * ((1 << 20) + 1), "admin"),
    ("GET", "/v1/tenants/acme/sources", SOURCES, None, "read"),
    ("GET", "/v1/tenants/a.b/sources", SOURCES, None, "read"),
    ("GET", "/v1/tenants/acme/sources", SOURCES, None, None),
    ("GET", "/v1/tenants/acme/sources", SOURCES, None, "tenant:globex"),
    ("GET", "/v1/tenants/acme/sources/new", SOURCE, None, "read"),
    ("GET", "/v1/tenants/a.b/sources/new", SOURCE, None, "read"),
    ("GET", "/v1/tenants/acme/sources/new", SOURCE, None, None),
    ("GET", "/v1/tenants/acme/sources/nope", SOURCE, None, "read"),
    ("PUT", "/v1/tenants/acme/sources/new", SOURCE, SPEC, "admin"),
    ("PUT", "/v1/tenants/acme/sources/new", SOURCE, {"sinks": []}, "admin"),
    ("PUT", "/v1/tenants/acme/sources/new", SOURCE, SPEC, None),
    ("PUT", "/v1/tenants/acme/sources/new", SOURCE, SPEC, "read"),
    ("PUT", "/v1/tenants/acme/sources/nope", SOURCE, SPEC, "admin"),
    ("PUT", "/v1/tenants/acme/sources/new", SOURCE, b" " * ((1 << 20) + 1), "admin"),
    ("DELETE", "/v1/tenants/acme/sources/new?deliveries=drop", SOURCE, None, "admin"),
    ("DELETE", "/v1/tenants/acme/sources/new", SOURCE, None, None),
    ("DELETE", "/v1/tenants/acme/sources/new", SOURCE, None, "read"),
    ("DELETE", "/v1/tenants/acme/sources/busy", SOURCE, None, "admin"),
    ("DELETE", "/v1/tenants/acme/sources/new", SOURCE, None, "admin"),
    ("DELETE", "/v1/tenants/acme/sources/new", SOURCE, None, "admin"),
]


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    with Node(tmp_path, config=CONFIG, tokens=tokens()) as made:
        yield made


@pytest.fixture
def document(node: Node) -> dict[str, Any]:
    found = node.get("/openapi.json", scope="read")
    assert isinstance(found, dict)
    return found


def check(document: dict[str, Any], method: str, path: str, reply: Reply) -> None:
    """That the document has this answer, in this shape."""
    documented = document["paths"][path][method.lower()]["responses"]
    assert str(reply.status) in documented, (method, path, reply)
    content = documented[str(reply.status)].get("content")
    if content is None:
        assert reply.body == b""
        return
    (media_type,) = content
    assert reply.headers["content-type"].split(";")[0] == media_type
    value = json.loads(reply.body) if media_type == "application/json" else reply.body.decode()
    wrong = schema.errors(value, content[media_type]["schema"], document)
    assert not wrong, (method, path, reply.status, wrong)


def test_every_answer_is_as_documented_and_every_documented_one_is_given(node: Node, document: dict[str, Any]) -> None:
    node.dead()
    node.settle(node.accept(), OutcomeKind.DELIVERED)
    node.dead(tenant="globex", source="bills")
    node.accept(lane="customer-1")
    node.accept(lane="customer-1")
    node.hold()
    node.hold()
    assert node.ask("POST", "/v1/tenants/acme/sources", SPEC | {"name": "busy"}, scope="admin").status == 201
    node.accept(source="acme.busy")
    seen: set[tuple[str, str, str]] = set()
    for method, asked, path, body, scope in ASKED:
        reply = node.ask(method, asked, body, scope=scope)
        check(document, method, path, reply)
        seen.add((method.lower(), path, str(reply.status)))

    async def close() -> None:
        node.parts.log.fail("away")
        node.parts.log.tables.close()

    node.run(close)
    bodies: dict[str, object] = {"POST": {"kind": "dlq"}, "PATCH": {"rate": 1}, "PUT": {"rate": 1, "burst": 1}}
    for method, path, status in _documented(document):
        if status == "503" and "{tenant}" not in path and "rate-limit" not in path:
            name = path.replace("{hook_id}", HOOK).replace("{job_id}", JOB)
            reply = node.ask(method.upper(), name, bodies.get(method.upper()), scope="admin")
            check(document, method, path, reply)
            seen.add((method, path, str(reply.status)))
    left = _documented(document) - seen
    # A node without the dispatch role has a test of its own, as have limits and sources that cannot be stored; this
    # host reads limits from memory, another may not.
    assert left == {
        ("put", SOURCE, "409"),
        *((method, SOURCE, "503") for method in ("put", "delete")),
        ("post", SOURCES, "503"),
        ("get", "/v1/rate-limits", "503"),
        ("get", "/v1/tenants/{tenant}/rate-limit", "503"),
        ("post", "/v1/replays", "409"),
        ("delete", "/v1/tenants/{tenant}/rate-limit", "503"),
        ("put", "/v1/tenants/{tenant}/rate-limit", "503"),
    }


def test_a_limit_that_cannot_be_stored_is_refused_as_documented(node: Node, document: dict[str, Any]) -> None:
    path = "/v1/tenants/{tenant}/rate-limit"
    assert node.ask("PUT", "/v1/tenants/acme/rate-limit", {"rate": 1, "burst": 1}, scope="admin").status == 200
    node.parts.log.fail("away")
    for method, body in (("PUT", {"rate": 2, "burst": 2}), ("DELETE", None)):
        reply = node.ask(method, "/v1/tenants/acme/rate-limit", body, scope="admin")
        assert reply.status == 503
        check(document, method, path, reply)
    assert node.get("/v1/tenants/acme/rate-limit", scope="admin")["rate"] == 1


def test_a_source_that_cannot_be_stored_is_refused_as_documented(node: Node, document: dict[str, Any]) -> None:
    assert node.ask("POST", "/v1/tenants/acme/sources", SPEC, scope="admin").status == 201
    node.parts.log.fail("away")
    asked = (("POST", SOURCES, SPEC | {"name": "other"}), ("PUT", SOURCE, SPEC), ("DELETE", SOURCE, None))
    for method, path, body in asked:
        reply = node.ask(method, path.format(tenant="acme", name="new"), body, scope="admin")
        assert reply.status == 503
        check(document, method, path, reply)
    assert [entry["name"] for entry in node.get("/v1/tenants/acme/sources", scope="admin")["entries"]] == ["new"]


def test_a_store_of_the_file_alone_refuses_writes_as_documented(tmp_path: Path, document: dict[str, Any]) -> None:
    with Node(tmp_path / "static", tokens=tokens()) as node:
        for method, path, body in (("POST", SOURCES, SPEC), ("PUT", SOURCE, SPEC), ("DELETE", SOURCE, None)):
            reply = node.ask(method, path.format(tenant="acme", name="new"), body, scope="admin")
            assert (reply.status, reply.json) == (409, {"error": "source_store_read_only"})
            check(document, method, path, reply)
        assert node.get("/v1/tenants/acme/sources", scope="admin") == {"tenant": "acme", "entries": []}


def _documented(document: dict[str, Any]) -> set[tuple[str, str, str]]:
    return {
        (method, path, status)
        for path, operations in document["paths"].items()
        for method, operation in operations.items()
        for status in operation["responses"]
    }


def test_what_needs_a_token_says_so(document: dict[str, Any]) -> None:
    open_paths = {
        path
        for path, operations in document["paths"].items()
        for operation in operations.values()
        if "security" not in operation
    }
    assert open_paths == {"/health", "/ready"}
    assert document["components"]["securitySchemes"]["HTTPBearer"]["scheme"] == "bearer"


def test_every_reference_has_a_target_and_nothing_of_the_framework_is_left(document: dict[str, Any]) -> None:
    text = json.dumps(document)
    assert "ValidationError" not in text
    assert '"422"' not in text

    def walk(value: Any) -> None:
        if isinstance(value, dict):
            if "$ref" in value:
                assert schema._target(value["$ref"], document)
            for inner in value.values():
                walk(inner)
        elif isinstance(value, list):
            for inner in value:
                walk(inner)

    walk(document)


def test_every_documented_filter_is_taken(node: Node, document: dict[str, Any]) -> None:
    """A parameter of the document with a value of its own schema is never refused."""
    values = {"error_class": "timeout", "body": "false", "source_id": "x", "tenant": "x", "id": "x", "breaker": "open"}
    for path, operations in document["paths"].items():
        for parameter in operations.get("get", {}).get("parameters", ()):
            if parameter["in"] == "query" and parameter["name"] != "cursor":
                name = path.replace("{hook_id}", "nope")
                reply = node.ask(
                    "GET", f"{name}?{parameter['name']}={values.get(parameter['name'], '5')}", scope="admin"
                )
                assert reply.status in (200, 404), (path, parameter, reply)
