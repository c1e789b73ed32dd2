"""Serving: what `ankusa serve` starts for a configuration, and what it says first.

Owns the choice of processes (an engine and its edges under the supervisor, or one process with `node.edges: 0`) and
the checks that are better made before any of them runs. It builds no part of a node itself.
"""

from __future__ import annotations

import errno
import os
import signal
import socket
import sys
import threading
import time
from pathlib import Path

from ankusa import logs
from ankusa.config.hosts import has_admin
from ankusa.config.load import PATH_VARIABLE
from ankusa.supervisor import WATCH_S, FileWatch, Supervisor
from schemas.config import Config

FAILED = 1
CONFIG = 78
"""What `check-config` says of a configuration that cannot be run."""

WAYS_OUT = {
    errno.EADDRINUSE: "; end what listens there, or set another port",
    errno.EADDRNOTAVAIL: "; the address is none of this machine's",
    errno.EACCES: "; ports under 1024 are the system's: set another",
}
"""What to do about a port that cannot be had."""


def run(config: Config, path: str | None) -> int:
    """Run a node with `config`, which was read from `path` (None: see `ANKUSA_CONFIG`); the exit status."""
    watched = path or os.environ.get(PATH_VARIABLE) or None
    if watched and not Path(watched).is_file():
        sys.stderr.write(
            f"{watched}: is no regular file, and each process of a node reads its configuration for itself: "
            "write it to a file and name that\n"
        )
        return CONFIG
    taken = taken_ports(config)
    if taken:
        sys.stderr.write("".join(f"{line}\n" for line in taken))
        return FAILED
    if config.demo:
        sys.stderr.write(demo_words(config))
    if config.node.edges == 0:
        return _in_place(config, watched)
    logs.set_up(config.log.level, "supervisor")
    end = ["--config", watched] if watched else []
    engine, edge = _on_kafka(config, end) if config.log.type == "kafka" else _embedded(config, end)
    edges = [edge] * (config.node.edges if "edge" in config.node.roles else 0)
    return Supervisor(engine, edges, FileWatch(Path(watched)) if watched else None).run()


def _embedded(config: Config, end: list[str]) -> tuple[list[str] | None, list[str]]:
    """The commands of an engine and of an edge."""
    from streams.local.server import socket_path

    engine = [sys.executable, "-m", "streams.local.engine_process", *end]
    socket = str(socket_path(config.node.data_dir))
    return engine, [sys.executable, "-m", "streams.local.edge_process", *end, "--socket", socket]


def _on_kafka(config: Config, end: list[str]) -> tuple[list[str] | None, list[str]]:
    """The commands of a worker or, where there is none, of a gateway, None without either role; and of an edge."""
    roles = config.node.roles
    module = "worker_process" if "worker" in roles else "gateway_process" if "claim_check" in roles else None
    engine = None if module is None else [sys.executable, "-m", f"streams.kafka.{module}", *end]
    return engine, [sys.executable, "-m", "streams.kafka.edge_process", *end]


def taken_ports(config: Config) -> list[str]:
    """The listeners of its roles whose port somebody else has, each as a line naming its key.

    A child that cannot listen is started again and again, which is right for a node that ran and wrong for one that
    never will.
    """
    wanted = [("http.port", config.http.ip, config.http.port)] if "edge" in config.node.roles else []
    administered = has_admin(config.node, config.log)
    if config.admin.enabled and administered:
        wanted.append(("admin.port", config.admin.ip, config.admin.port))
    if config.routes.enabled and administered:
        wanted.append(("routes.admin.port", config.routes.admin.ip, config.routes.admin.port))
    if "claim_check" in config.node.roles:
        wanted.append(("claim_check.port", config.claim_check.ip, config.claim_check.port))
    return [
        f"{key}: cannot listen on {ip}:{port}: {os.strerror(number)}{WAYS_OUT.get(number, '')}"
        for key, ip, port in wanted
        if port and (number := _bind_error(ip, port))
    ]


def demo_words(config: Config) -> str:
    """What a person who gave no configuration wants to know."""
    address = f"http://{config.http.ip}:{config.http.port}{config.http.prefix}"
    lines = [
        "no configuration given: running the demo source `demo`, which verifies nothing and logs what it delivers. Try",
        f"  curl -i {address}/demo -H 'content-type: application/json' -d '{{\"hello\": \"world\"}}'",
    ]
    if config.admin.enabled:
        lines.append(f"  curl http://{config.admin.ip}:{config.admin.port}/v1/stats")
    return "\n".join(lines) + "\n"


def _bind_error(ip: str, port: int) -> int | None:
    """The error number of binding the address, None when it can be had."""
    with socket.socket(socket.AF_INET6 if ":" in ip else socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((ip, port))
        except OSError as error:
            return error.errno or errno.EADDRINUSE
    return None


def _in_place(config: Config, watched: str | None) -> int:
    """The whole node in this process, for development."""
    import uvloop

    from streams.local import engine_process

    logs.set_up(config.log.level, "node")
    Path(config.node.data_dir).mkdir(parents=True, exist_ok=True)
    if watched:
        threading.Thread(target=_watch, args=(FileWatch(Path(watched)),), name="config-watch", daemon=True).start()
    return uvloop.run(engine_process.run(config, watched, os.environ))


def _watch(file: FileWatch) -> None:
    while True:
        time.sleep(WATCH_S)
        if file.changed():
            os.kill(os.getpid(), signal.SIGHUP)
