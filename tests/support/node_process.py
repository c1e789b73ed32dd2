"""`ankusa serve` as a real process on free ports, and how to talk to it."""

from __future__ import annotations

import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from ankusa.demo.ask import ask

DEADLINE_S = 120.0
"""A bound alone: a node is ready after two seconds, and was after forty beside ten times as much work as processors."""
EPHEMERAL = Path("/proc/sys/net/ipv4/ip_local_port_range")
PARENT, SESSION = 1, 3
"""Fields of `/proc/PID/stat` behind the command's name."""


def free_port() -> int:
    """A free port below those that the system gives to outgoing connections: one that goes on connecting to a node
    that is down must not be given its port."""
    first = int(EPHEMERAL.read_text().split()[0]) if EPHEMERAL.exists() else 32_768
    while True:
        port = 10_000 + secrets.randbelow(max(1_000, first - 10_000))
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


def free_ports(count: int) -> list[int]:
    """So many, all different."""
    ports: set[int] = set()
    while len(ports) < count:
        ports.add(free_port())
    return list(ports)


def poll(what: str, condition: Callable[[], Any], deadline_s: float = DEADLINE_S) -> Any:
    """The first true value of `condition`, in which OSError counts as not yet; an AssertionError past the deadline."""
    deadline = time.monotonic() + deadline_s
    while True:
        try:
            found = condition()
        except OSError:
            found = None
        if found:
            return found
        assert time.monotonic() < deadline, f"{what} did not come true within {deadline_s} s"
        time.sleep(0.05)


def children(pid: int) -> list[int]:
    """The processes that `pid` started and that run."""
    return _running(PARENT, pid)


def session(leader: int) -> list[int]:
    """The running processes of a session."""
    return _running(SESSION, leader)


def _running(field: int, value: int) -> list[int]:
    """The running processes of which a field of their state is `value`."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[field]) == value and fields[0] != "Z":
            found.append(int(stat.parent.name))
    return sorted(found)


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


class NodeProcess:
    """A node that was started. `process` is the supervisor, or with `node.edges: 0` the node itself."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path, http_port: int, admin_port: int) -> None:
        self.process = process
        self.http_port = http_port
        self.admin_port = admin_port
        self._log = log

    def log(self) -> str:
        return self._log.read_text()

    def admin(self, path: str) -> tuple[int, dict[str, Any]]:
        return ask(self.admin_port, "GET", path)

    def post(self, source: str, body: Mapping[str, Any]) -> tuple[int, dict[str, Any]]:
        return ask(self.http_port, "POST", f"/webhooks/{source}", dict(body))

    def is_ready(self) -> bool:
        assert self.process.poll() is None, self.log()
        return ask(self.http_port, "GET", "/ready")[0] == 200 and self.admin("/ready")[0] == 200

    def end(self, number: int = signal.SIGTERM) -> int:
        """Signal it and wait; its exit status."""
        self.process.send_signal(number)
        return self.process.wait(DEADLINE_S)


@contextmanager
def serving(directory: Path, config: Mapping[str, Any] | None = None, **env: str) -> Iterator[NodeProcess]:
    """`ankusa serve` in `directory`, ready; with `config` as its file, and its ports and data directory set by us."""
    http_port, admin_port = free_ports(2)
    command = [sys.executable, "-m", "ankusa.cli", "serve"]
    if config is not None:
        (directory / "ankusa.yaml").write_text(json.dumps(config))  # JSON is YAML
        command += ["--config", "ankusa.yaml"]
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("ANKUSA_") and name != "PORT"}
    ours = {"ANKUSA_HTTP_PORT": str(http_port), "ANKUSA_ADMIN_PORT": str(admin_port)}
    log = directory / "serve.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, cwd=directory, env=inherited | ours | env, stdin=subprocess.DEVNULL, stdout=output, stderr=output
        )
    node = NodeProcess(process, log, http_port, admin_port)
    started: list[int] = []
    try:
        poll("a ready node", node.is_ready)
        started = children(process.pid)
        yield node
    finally:
        for pid in {*started, *children(process.pid)}:
            if is_running(pid):
                os.kill(pid, signal.SIGKILL)
        process.kill()
        process.wait()
