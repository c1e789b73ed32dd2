"""Sources set up through the API of a real node: they take hooks from the answer on, and outlive every process."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import os
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.integration.test_client_sdk import python  # noqa: F401 - a fixture
from tests.support.node import READY_S, Node
from tests.support.node_process import poll

KEY = base64.b64encode(bytes(range(32))).decode()
SOURCES = "/v1/tenants/acme/sources"
LOG = {"sinks": [{"type": "log"}]}


def node(folder: Path, *, edges: int = 1, **config: Any) -> Node:
    store = {"type": "persistent", "secret_key": KEY}
    document = {"node": {"edges": edges}, "source_store": store, "log": {"level": "info"}, **config}
    return Node(folder, document)


class Sink:
    """An HTTP server that notes the bodies it is given. `status` is what it answers."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []
        self.status = 200
        sink = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                if sink.status == 200:
                    sink.bodies.append(body)
                self.send_response(sink.status)
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None: ...

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}/"
        self._thread = threading.Thread(target=self._server.serve_forever)
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


@pytest.fixture
def sink() -> Iterator[Sink]:
    made = Sink()
    yield made
    made.close()


def create(running: Node, name: str, **spec: Any) -> Any:
    answer = running.admin("POST", SOURCES, {"name": name, **spec})
    assert answer.status == 201, answer
    return answer.json


def github(secret: str, body: bytes) -> dict[str, str]:
    return {"x-hub-signature-256": "sha256=" + hmac.new(secret.encode(), body, hashlib.sha256).hexdigest()}


@pytest.mark.parametrize("edges", [0, 1, 2])
def test_from_the_answer_on_a_source_takes_hooks_or_takes_none(tmp_path: Path, sink: Sink, edges: int) -> None:
    with node(tmp_path, edges=edges) as running:
        # The node is ready when one edge is; another may still be starting, and listens when it knows the sources.
        for number in range(10):  # with two edges, each request may meet either
            name = f"s{number}"
            create(running, name, sinks=[{"type": "http", "url": sink.url}])
            for _ in range(4):
                assert running.post(f"acme.{name}", b"%d" % number).status == 201
        poll("forty deliveries", lambda: len(sink.bodies) == 40)
        body = b'{"n":1}'
        spec = {"sinks": [{"type": "http", "url": sink.url}], "verify": {"type": "github", "secret": "new"}}
        assert running.admin("PUT", f"{SOURCES}/s0", spec).status == 200
        for _ in range(4):
            assert running.post("acme.s0", body).status == 401
            assert running.post("acme.s0", body, github("new", body)).status == 201
        poll("what was verified", lambda: len(sink.bodies) == 44)
        poll("settled rows", lambda: running.admin("DELETE", f"{SOURCES}/s0").status == 204)
        for _ in range(4):
            assert running.post("acme.s0", body).status == 404
        assert len(running.get(SOURCES)["entries"]) == 9


def test_a_source_is_there_after_everything_was_killed_right_behind_its_answer(tmp_path: Path, sink: Sink) -> None:
    running = node(tmp_path)
    with running:
        for number in range(3):
            secret = f"secret-{number}-0123456789"
            verify = {"type": "github", "secret": secret}
            create(running, f"s{number}", sinks=[{"type": "http", "url": sink.url}], verify=verify)
            running.kill()
            running.start()
            body = b'{"n": %d}' % number
            assert running.post(f"acme.s{number}", body, github(secret, body)).status == 201
        assert [entry["name"] for entry in running.get(SOURCES)["entries"]] == ["s0", "s1", "s2"]
        assert running.admin("POST", SOURCES, {"name": "s0", **LOG}).json == {"error": "source_exists"}
        # What was delivered when its node was killed comes again.
        poll("three deliveries", lambda: len(set(sink.bodies)) == 3)
        assert running.stop() == 0
    store = tmp_path / "data" / "store"
    assert not [file.name for file in store.iterdir() if file.is_file() and b"secret-1-01234" in file.read_bytes()]
    assert "secret-1-01234" not in running.log()


def test_an_edge_keeps_its_sources_while_the_engine_is_away_and_a_new_edge_gets_them(tmp_path: Path) -> None:
    with node(tmp_path) as running:
        create(running, "s1", **LOG)
        assert running.post("acme.s1").status == 201
        (engine,) = running.pids("engine_process")
        os.kill(engine, signal.SIGKILL)
        statuses: set[int] = set()
        poll("hooks again", lambda: statuses.add(running.post("acme.s1").status) or 201 in statuses)
        assert statuses <= {201, 503}  # never 404: a provider would give up
        running.kill_one("edge_process")
        statuses.clear()
        poll("hooks again", lambda: statuses.add(running.post("acme.s1").status) or 201 in statuses)
        assert statuses <= {201, 503}


def test_a_reload_keeps_what_the_api_set_up(tmp_path: Path, sink: Sink) -> None:
    config: dict[str, Any] = {"sources": {"first": {"verify": {"type": "none"}, **LOG}}}
    with node(tmp_path, **config) as running:
        create(running, "s1", sinks=[{"type": "http", "url": sink.url}])
        assert running.post("first").status == 201
        config["sources"] = {"second": {"verify": {"type": "none"}, "sinks": [{"type": "http", "url": sink.url}]}}
        config["dispatch"] = {"concurrency": 4}
        running.write({"source_store": {"type": "persistent", "secret_key": KEY}, "log": {"level": "info"}, **config})
        running.signal(signal.SIGHUP)
        poll("the new source", lambda: running.post("second").status == 201)
        poll("the old one's end", lambda: running.post("first").status == 404)
        assert running.post("acme.s1", b"after").status == 201
        poll("its delivery", lambda: b"after" in sink.bodies)
        # Another allow list: every sink is built anew, those of the API too.
        running.write(
            {
                "source_store": {"type": "persistent", "secret_key": KEY},
                "log": {"level": "info"},
                "egress": {"allow": ["127.0.0.0/8", "10.0.0.0/8"]},
                **config,
            }
        )
        poll("the reload", lambda: "changed=egress.allow" in running.log())
        assert running.post("acme.s1", b"again").status == 201
        poll("its delivery", lambda: b"again" in sink.bodies)


def test_waiting_rows_keep_a_source_until_they_are_killed(tmp_path: Path, sink: Sink) -> None:
    sink.status = 500
    with node(tmp_path) as running:
        create(running, "s1", sinks=[{"type": "http", "url": sink.url}], retry={"base_ms": 60_000})
        for _ in range(20):
            assert running.post("acme.s1").status == 201
        refused = running.admin("DELETE", f"{SOURCES}/s1")
        assert refused.status == 409
        assert refused.json["error"] == "source_has_deliveries"
        assert refused.json["pending"] + refused.json["inflight"] == 20
        poll("no attempt", lambda: running.admin("DELETE", f"{SOURCES}/s1").json["inflight"] == 0)
        assert running.admin("DELETE", f"{SOURCES}/s1?deliveries=dead_letter").status == 204
        assert running.get("/v1/dlq?source_id=acme.s1")["total"] == 20
        assert running.post("acme.s1").status == 404


def test_a_key_that_opens_nothing_keeps_the_node_from_starting(tmp_path: Path) -> None:
    running = node(tmp_path)
    with running:
        create(running, "s1", **LOG)
        running.stop()
        other = base64.b64encode(bytes(32)).decode()
        running.write({"source_store": {"type": "persistent", "secret_key": other}})
        running.launch()
        assert running.process is not None
        assert running.process.wait(READY_S) == 65
        assert "event=sources_unreadable" in running.log()
        assert "acme.s1 is sealed with a key that is not given" in running.log()


# -- the published client ---------------------------------------------------------------------

SCRIPT = """
import json, sys
from ankusa.sources import SourceSpec, SourcesClient, SourcesError
from ankusa.sources import client as module

url, calls = sys.argv[1], json.loads(sys.argv[2])
found = []
with SourcesClient(url, expected_version=sys.argv[3] or None) as client:
    for name, arguments in calls:
        if name in ("create_source", "update_source"):
            arguments = [*arguments[:2], SourceSpec(**arguments[2])]
        try:
            answer = getattr(client, name)(*arguments)
        except SourcesError as error:
            name = type(error).__name__
            found.append({"raised": name, "status": error.status, "message": str(error), "body": error.body})
            continue
        if isinstance(answer, list):
            answer = [vars(one) for one in answer]
        found.append({"answer": vars(answer) if hasattr(answer, "__dict__") else answer})
methods = [name for name in vars(SourcesClient) if not name.startswith("_") and name != "close"]
print(json.dumps({"found": found, "methods": methods}))
"""

Client = Callable[..., Any]


def client(interpreter: Path, running: Node, calls: list[Any], version: str = "") -> tuple[list[Any], list[str]]:
    url = f"http://127.0.0.1:{running.admin_port}"
    command = [str(interpreter), "-I", "-c", SCRIPT, url, json.dumps(calls), version]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    printed = json.loads(done.stdout)
    return printed["found"], printed["methods"]


def test_every_method_of_the_sources_client(python: Path, tmp_path: Path, sink: Sink) -> None:  # noqa: F811
    http = {"type": "http", "url": sink.url}
    spec = {"sinks": [http], "verify": {"type": "github", "secret": "s3cret-s3cret"}, "on_verify_failure": "quarantine"}
    with node(tmp_path) as running:
        version = running.get("/health")["version"]
        found, methods = client(
            python,
            running,
            [
                ["server_version", []],
                ["create_source", ["acme", "orders", spec]],
                ["create_source", ["acme", "orders", spec]],
                ["get_source", ["acme", "orders"]],
                ["update_source", ["acme", "orders", {"sinks": [http]}]],
                ["list_sources", ["acme"]],
                ["list_sources", ["globex"]],
                ["get_source", ["acme", "nope"]],
                ["update_source", ["acme", "nope", {"sinks": [http]}]],
                ["create_source", ["acme", "bad", {"sinks": [{"type": "http"}]}]],
                ["create_source", ["acme", "bad", {"sinks": []}]],
                ["delete_source", ["acme", "orders"]],
                ["delete_source", ["acme", "orders"]],
            ],
            version,
        )
        assert {*methods} == {
            "server_version",
            "create_source",
            "get_source",
            "update_source",
            "list_sources",
            "delete_source",
        }
        answers = [one.get("answer") for one in found]
        raised = [(one["raised"], one["status"]) if "raised" in one else None for one in found]
        assert answers[0] == version
        created = answers[1]
        assert (created["source_id"], created["ingest_path"]) == ("acme.orders", "/webhooks/acme.orders")
        assert created["verify"] == {"type": "github", "secret": "[redacted]"}
        assert created["on_verify_failure"] == "quarantine"
        assert raised[2] == ("SourceConflictError", 409)
        assert answers[3] == created
        assert answers[4]["verify"] == {"type": "none"}
        assert answers[5] == [answers[4]]
        assert answers[6] == []
        assert raised[7] == raised[8] == ("SourceNotFoundError", 404)
        assert raised[9] == raised[10] == ("SourceInvalidError", 400)
        assert "sinks[0].url: is required" in found[9]["message"]
        assert answers[11] is None and "raised" not in found[11]
        assert raised[12] == ("SourceNotFoundError", 404)


def test_what_the_sources_client_makes_of_a_busy_a_static_and_a_silent_node(
    python: Path,  # noqa: F811
    tmp_path: Path,
    sink: Sink,
) -> None:
    sink.status = 500
    with node(tmp_path) as running:
        create(running, "s1", sinks=[{"type": "http", "url": sink.url}])
        running.post("acme.s1")
        (found,), _ = client(python, running, [["delete_source", ["acme", "s1"]]])
        assert (found["raised"], found["body"]["error"]) == ("SourceConflictError", "source_has_deliveries")
        (found,), _ = client(python, running, [["list_sources", ["acme"]]], "0.0.0")
        assert found["raised"] == "VersionMismatchError"
        running.stop()
        (found,), _ = client(python, running, [["list_sources", ["acme"]]])
        assert found["raised"] == "SourcesUnavailableError"
    static = tmp_path / "static"
    static.mkdir()
    with Node(static, {"sources": {"a": {"verify": {"type": "none"}, **LOG}}}) as running:
        found, _ = client(python, running, [["create_source", ["acme", "x", LOG]], ["list_sources", ["acme"]]])
        assert found[0]["raised"] == "SourceStoreReadOnlyError"
        assert found[1] == {"answer": []}
