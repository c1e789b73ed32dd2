"""A node of a fleet that serves bodies sent by reference and does nothing else: it needs its store, and no broker."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ankusa.claim_check import pack as packs
from ankusa.claim_check.reference import pack_id
from tests.support.node_process import children, free_port, is_running, poll

AT = 1_700_000_000_000
BODY = b"a large body" * 1000


def configured(folder: Path, port: int) -> Path:
    document = {
        "log": {"type": "kafka"},
        "kafka": {"brokers": ["127.0.0.1:1"]},
        "node": {"roles": ["claim_check"], "data_dir": str(folder / "data")},
        "claim_check": {"port": port, "store": {"path": str(folder / "packs")}},
        "sources": {"orders": {"verify": {"type": "none"}, "sinks": [{"type": "log"}]}},
    }
    file = folder / "ankusa.yaml"
    file.write_text(json.dumps(document))
    return file


@contextmanager
def serving(file: Path) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "ankusa.cli", "serve", "--config", str(file)]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True)
    try:
        yield process
    finally:
        for pid in children(process.pid):
            if is_running(pid):
                os.kill(pid, signal.SIGKILL)
        process.kill()
        process.communicate()


def answered(port: int, path: str) -> tuple[int, bytes]:
    """Status and body; 0 while nobody listens."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        return response.status, response.read()
    except OSError:
        return 0, b""
    finally:
        connection.close()


def test_a_gateway_alone_serves_what_any_worker_stored_and_outlives_reloads_and_its_own_end(tmp_path: Path) -> None:
    port, pack = free_port(), pack_id(AT, 1)
    with serving(configured(tmp_path, port)) as node:
        poll("the gateway", lambda: answered(port, "/health")[0] == 200)
        (tmp_path / "packs" / "acme").mkdir()
        (tmp_path / "packs" / "acme" / pack).write_bytes(packs.head([len(BODY)]) + BODY)
        assert answered(port, f"/v1/claims/acme/{pack}") == (200, BODY)
        assert answered(port, f"/v1/claims/acme/{pack_id(AT, 2)}")[0] == 404
        (gateway,) = children(node.pid)
        node.send_signal(signal.SIGHUP)  # passed on: all that it reads needs a restart
        assert answered(port, f"/v1/claims/acme/{pack}") == (200, BODY)
        assert children(node.pid) == [gateway]
        os.kill(gateway, signal.SIGKILL)
        poll("a gateway again", lambda: answered(port, f"/v1/claims/acme/{pack}") == (200, BODY))
        node.send_signal(signal.SIGTERM)
        assert node.wait(120) == 0
    assert not (tmp_path / "data").exists()


def test_a_port_that_is_taken_is_named(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        command = [sys.executable, "-m", "ankusa.cli", "serve", "--config", str(configured(tmp_path, port))]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 1
    assert f"claim_check.port: cannot listen on 127.0.0.1:{port}" in done.stderr
