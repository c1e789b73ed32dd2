"""`ankusa serve` with real processes: what runs, what a changed file does, and how it ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ankusa.demo.ask import ask
from tests.support.node_process import children, is_running, poll, serving

SOURCE: dict[str, Any] = {"verify": {"type": "none"}, "sinks": [{"type": "log"}]}


def test_without_a_configuration_it_runs_the_demo_source_and_says_so(tmp_path: Path) -> None:
    with serving(tmp_path) as node:
        assert f"curl -i http://127.0.0.1:{node.http_port}/webhooks/demo" in node.log()
        status, answer = node.post("demo", {"hello": "world"})
        assert (status, answer["status"]) == (201, "accepted")
        poll("a logged delivery", lambda: answer["id"] in node.log())
        assert node.admin("/health")[1]["status"] == "ok"
        assert node.admin("/metrics")[0] == 200
        assert (tmp_path / "data" / "store").is_dir()
        started = children(node.process.pid)
        assert len(started) == 2  # an engine and an edge
        assert node.end() == 0
        assert not any(map(is_running, started))


def test_a_configuration_that_only_one_process_can_read_is_refused(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    command = [sys.executable, "-m", "ankusa.cli", "serve", "--config", str(pipe)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as node:
        pipe.write_text(json.dumps({"sources": {"first": SOURCE}}))
        _, words = node.communicate(timeout=120)
    assert (node.returncode, f"{pipe}: is no regular file" in words) == (78, True)


@pytest.mark.parametrize("edges", [0, 1, 2])
def test_a_changed_file_reloads(tmp_path: Path, edges: int) -> None:
    config: dict[str, Any] = {"node": {"edges": edges}, "sources": {"first": SOURCE}}
    with serving(tmp_path, config) as node:
        assert len(children(node.process.pid)) == (edges + 1 if edges else 0)
        assert node.post("second", {})[0] == 404
        (tmp_path / "ankusa.yaml").write_text("sources: {")  # half written: refused, and the node goes on
        poll("a refusal", lambda: "reload_refused" in node.log())
        assert node.post("first", {})[0] == 201
        config["sources"]["second"] = SOURCE
        (tmp_path / "ankusa.yaml").write_text(json.dumps(config))
        poll("the new source", lambda: node.post("second", {})[0] == 201)
        assert node.end() == 0


def test_a_reload_opens_no_listener_that_others_reach(tmp_path: Path) -> None:
    token = {"token": "abc", "scopes": ["admin"]}
    config: dict[str, Any] = {"admin": {"ip": "0.0.0.0", "tokens": [token]}, "sources": {"first": SOURCE}}
    with serving(tmp_path, config) as node:
        port = node.admin_port
        assert ask(port, "GET", "/v1/stats")[0] == 401
        config["admin"] = {"ip": "127.0.0.1"}  # sound by itself, and for the node after a restart
        (tmp_path / "ankusa.yaml").write_text(json.dumps(config))
        poll("a refusal", lambda: "reload_refused reason=admin.tokens: cannot all go" in node.log())
        assert ask(port, "GET", "/v1/stats")[0] == 401
        assert node.end() == 0


def test_an_engine_that_is_killed_is_started_again_beside_its_edge(tmp_path: Path) -> None:
    with serving(tmp_path, {"sources": {"first": SOURCE}}) as node:
        engine, edge = children(node.process.pid)
        if "edge_process" in Path(f"/proc/{engine}/cmdline").read_text():
            engine, edge = edge, engine
        os.kill(engine, signal.SIGKILL)
        assert ask(node.http_port, "GET", "/health")[0] == 200  # the edge lives
        seen: list[int] = []

        def taken() -> bool:
            seen.append(node.post("first", {})[0])  # it may hold a hook for the engine that comes back, or refuse it
            return seen[-1] == 201

        poll("a node that takes hooks again", taken)
        assert set(seen) <= {201, 503}
        assert is_running(edge)
        assert len(children(node.process.pid)) == 2
        assert node.end(signal.SIGINT) == 0


def test_children_end_with_a_supervisor_that_is_killed(tmp_path: Path) -> None:
    with serving(tmp_path, {"sources": {"first": SOURCE}}) as node:
        started = children(node.process.pid)
        node.process.kill()
        node.process.wait()
        poll("the end of its processes", lambda: not any(map(is_running, started)))
    with serving(tmp_path, {"sources": {"first": SOURCE}}) as node:  # and the store is free
        assert node.post("first", {})[0] == 201


def test_a_second_node_on_one_directory_ends_with_the_reason(tmp_path: Path) -> None:
    config = {"node": {"data_dir": str(tmp_path / "data")}, "sources": {"first": SOURCE}}
    with serving(tmp_path, config) as node:
        second = tmp_path / "second"
        second.mkdir()
        with pytest.raises(AssertionError) as refused, serving(second, config):
            pass
        assert "store_refused" in str(refused.value)
        assert node.post("first", {})[0] == 201
