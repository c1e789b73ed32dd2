"""A real node for a benchmark: its own data directory, config and processes, and the sink beside it."""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

import yaml

from tests.bench.load import request_bytes

SECRET = "bench-secret"
BODY = json.dumps({"id": "evt_1", "type": "charge.succeeded", "data": "x" * 960}).encode()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def signed_request(port: int, source: str = "bench") -> bytes:
    """A 1 KB hook signed as GitHub signs."""
    signature = hmac.new(SECRET.encode(), BODY, hashlib.sha256).hexdigest()
    headers = {
        "content-type": "application/json",
        "user-agent": "GitHub-Hookshot/bench",
        "x-github-event": "push",
        "x-hub-signature-256": f"sha256={signature}",
    }
    return request_bytes(f"127.0.0.1:{port}", f"/webhooks/{source}", headers, BODY)


class Sink:
    """`tests/support/http_sink.py` as a process, logging each delivered id."""

    def __init__(self, folder: Path) -> None:
        self.port = free_port()
        self.log = folder / "deliveries.log"
        command = [sys.executable, "-m", "tests.support.http_sink", "--port", str(self.port), "--log", str(self.log)]
        self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        wait_for_port(self.port)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/sink"

    def lines(self) -> list[list[str]]:
        """`[id, arrival unix ms, replay id]` of each delivery."""
        return [line.split(" ") for line in self.log.read_text().splitlines()] if self.log.exists() else []

    def log_bytes(self) -> int:
        """How much has been logged, without reading it."""
        return self.log.stat().st_size if self.log.exists() else 0

    def behave(self, **fields: Any) -> None:
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}/__control", json.dumps(fields).encode(), method="POST"
        )
        urllib.request.urlopen(request, timeout=5).read()

    def stop(self) -> None:
        self._process.kill()
        self._process.wait()


class Node:
    """`ankusa serve` in a folder of its own. `overrides` is merged into its config, section by section."""

    def __init__(self, folder: Path, sink_url: str | None, **overrides: Any) -> None:
        self.folder = folder
        self.http, self.admin = free_port(), free_port()
        sinks = [{"type": "http", "url": sink_url}] if sink_url else [{"type": "log", "level": "debug"}]
        config: dict[str, Any] = {
            "node": {"data_dir": str(folder / "data")},
            "log": {"level": "warning"},
            "http": {"port": self.http},
            "admin": {"port": self.admin},
            "egress": {"allow": ["127.0.0.0/8"]},
            "sources": {"bench": {"verify": {"type": "github", "secret": SECRET}, "sinks": sinks}},
        }
        for section, values in overrides.items():
            config[section] = {**config.get(section, {}), **values}
        self.config = folder / "ankusa.yaml"
        self.config.write_text(yaml.safe_dump(config))
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> Self:
        command = [sys.executable, "-m", "ankusa.cli", "serve", "--config", str(self.config)]
        self._process = subprocess.Popen(command, start_new_session=True)
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{self.http}/ready", timeout=1) as answer:
                    if answer.status == 200:
                        wait_for_port(self.admin)
                        return self
            except OSError:
                pass
            if self._process.poll() is not None:
                raise RuntimeError(f"the node ended with status {self._process.returncode}")
            time.sleep(0.02)
        raise RuntimeError("the node was not ready within 30 s")

    def stop(self) -> None:
        assert self._process is not None
        self._process.terminate()
        self._process.wait(40)

    def get(self, path: str) -> Any:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.admin}{path}", timeout=10) as answer:
            return json.loads(answer.read())

    def post(self, path: str, body: dict[str, Any], method: str = "POST") -> Any:
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.admin}{path}",
            json.dumps(body).encode(),
            {"content-type": "application/json"},
            method=method,
        )
        with urllib.request.urlopen(request, timeout=10) as answer:
            return json.loads(answer.read())

    def resident_mib(self) -> dict[str, float]:
        """Resident memory of the node's processes by what they are, MiB."""
        return self._of_processes(lambda fields: int(fields[21]) * os.sysconf("SC_PAGE_SIZE") / 2**20)

    def cpu_s(self) -> dict[str, float]:
        """CPU time that the node's processes have spent, by what they are, seconds."""
        return self._of_processes(lambda fields: (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK"))

    def _of_processes(self, figure: Callable[[list[str]], float]) -> dict[str, float]:
        assert self._process is not None
        found: dict[str, float] = {}
        for stat in Path("/proc").glob("[0-9]*/stat"):
            try:
                fields = stat.read_text().rsplit(")", 1)[1].split()
                if int(fields[3]) != self._process.pid:  # the session
                    continue
                command = (stat.parent / "cmdline").read_bytes().replace(b"\0", b" ").decode()
                name = "engine" if "engine_process" in command else "edge" if "edge_process" in command else "main"
                found[name] = found.get(name, 0) + figure(fields)
            except (OSError, IndexError):
                continue
        return found


def wait_for_port(port: int, seconds: float = 20) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            return
        except OSError:
            time.sleep(0.02)
    raise RuntimeError(f"nothing listens on port {port}")


class Folder:
    """A folder for one benchmark, on the working disk (a tmpfs would measure no fsync), gone afterwards."""

    def __enter__(self) -> Path:
        self._path = Path(tempfile.mkdtemp(prefix="ankusa-bench-", dir=Path.cwd()))
        return self._path

    def __exit__(self, *_: object) -> None:
        shutil.rmtree(self._path, ignore_errors=True)
