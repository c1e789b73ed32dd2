"""The compose stack as processes, without Docker: `make kafka-demo`, on the jars that the tests use.

Three brokers, two edges, two workers and the demo's sink, on free ports of loopback, their files in a temporary
directory. It posts hooks through both edges, ends one worker with `kill -9` on the way, waits until the sink has every
one that was acknowledged, and counts. Without `--once` it goes on serving until Ctrl-C. Exit status 0 only if the
counts add up.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import yaml

from ankusa.demo.ask import ask
from ankusa.demo.processes import DemoError, Process
from tests.kafka import cluster
from tests.support import brokers
from tests.support.node_process import children, free_ports

COMPOSE = Path(__file__).parent
ROLES = {"edge-1": "edge", "edge-2": "edge", "worker-1": "worker", "worker-2": "worker"}
SECRET = "whsec_bG9jYWwtc2VjcmV0LW9mLTMyLWJ5dGVzLWxvbmchIQ=="  # noqa: S105 - of a sink on loopback, for a minute
TOKEN = "local-admin"  # noqa: S105 - the same

HOOKS = 2000
POSTERS = 16
READY_S = 120.0
DELIVERED_S = 120.0


class Stack:
    """The running processes. `ports` are the nodes' and the sink's, by name."""

    def __init__(self, directory: Path, servers: list[brokers.Kafka]) -> None:
        self.directory = directory
        self.brokers = ",".join(cluster.addresses(servers))
        self.ports = dict(zip([*ROLES, "sink"], free_ports(len(ROLES) + 1), strict=True))
        self.nodes: dict[str, Process] = {}

    def start(self, name: str) -> Process:
        """`ankusa serve` with the stack's configuration, as that container has it."""
        file = self._configure(name)
        command = [sys.executable, "-m", "ankusa.cli", "serve", "--config", str(file)]
        self.nodes[name] = Process(name, command, self.directory)
        return self.nodes[name]

    def create_topics(self) -> None:
        """What the container `topics` does."""
        command = [sys.executable, "-m", "ankusa.cli", "topics", "create", "--config", str(self._configure("edge-1"))]
        done = subprocess.run(command, capture_output=True, text=True, timeout=READY_S)
        if done.returncode:
            raise DemoError(f"ankusa topics create: {done.stderr}")

    def _configure(self, name: str) -> Path:
        """The file of the containers, with this machine's addresses."""
        text = (COMPOSE / "ankusa.yaml").read_text()
        for variable, value in (
            *(("ANKUSA_ADMIN_TOKEN", TOKEN), ("ANKUSA_METRICS_TOKEN", "local-metrics"), ("SINK_SECRET", SECRET)),
            ("http://sink:9000/", f"http://127.0.0.1:{self.ports['sink']}/"),
        ):
            text = text.replace(f"${{{variable}}}" if variable.isupper() else variable, value)
        document: dict[str, Any] = yaml.safe_load(text)
        document["node"] = {"roles": [ROLES[name]], "data_dir": str(self.directory / name)}
        document["kafka"]["brokers"] = self.brokers
        document["http"] = {"port": self.ports[name]}
        document["admin"] |= {"ip": "127.0.0.1", "port": self.ports[name]}
        document["egress"] = {"allow": ["127.0.0.0/8"]}
        file = self.directory / f"{name}.yaml"
        file.write_text(json.dumps(document))
        return file

    def record(self) -> dict[str, dict[str, Any]]:
        """What the sink has, by hook id."""
        hooks: dict[str, dict[str, Any]] = ask(self.ports["sink"], "GET", "/record")[1]["hooks"]
        return hooks


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


@contextlib.contextmanager
def running(directory: Path) -> Iterator[Stack]:
    """The whole stack, ready."""
    with contextlib.ExitStack() as stack:
        say("starting three brokers")
        servers = cluster.start_three(directory / "brokers")
        for server in servers:
            stack.callback(server.stop)
        made = Stack(directory, servers)
        made.create_topics()
        sink = [sys.executable, "-m", "ankusa.demo.sink", "--port", str(made.ports["sink"]), "--secret", SECRET]
        stack.enter_context(Process("sink", sink, directory))
        say("starting two workers and two edges")
        for name in reversed(ROLES):
            stack.enter_context(made.start(name))
        for name, node in made.nodes.items():
            port = made.ports[name]
            node.wait_for(f"starting {name}", lambda port=port: ask(port, "GET", "/ready")[0] == 200, READY_S)  # type: ignore[misc]
        yield made


def post_all(stack: Stack) -> set[str]:
    """Post every hook, each to one edge or the other, until it is acknowledged; their ids."""

    def post(number: int) -> str:
        while True:
            with contextlib.suppress(OSError):
                port = stack.ports[f"edge-{number % 2 + 1}"]
                status, answer = ask(port, "POST", "/webhooks/demo", {"number": number})
                if status == 201:
                    return str(answer["id"])
            time.sleep(0.2)

    with ThreadPoolExecutor(POSTERS) as together:
        return set(together.map(post, range(HOOKS)))


def kill_a_worker(stack: Stack) -> None:
    """As a crash would; its supervisor starts it again."""
    for pid in children(stack.nodes["worker-1"].pid):
        os.kill(pid, signal.SIGKILL)


def story(stack: Stack) -> bool:
    """Post, kill, wait, count; whether it adds up."""
    say(f"posting {HOOKS} hooks through two edges; a worker is killed on the way")
    began_s = time.monotonic()
    with ThreadPoolExecutor(1) as beside:
        posting = beside.submit(post_all, stack)
        stack.nodes["worker-2"].wait_for("a first delivery", lambda: len(stack.record()) > HOOKS // 10, DELIVERED_S)
        kill_a_worker(stack)
        ids = posting.result()
    say(f"{len(ids)} acknowledged after {time.monotonic() - began_s:.1f} s")
    stack.nodes["worker-2"].wait_for("delivering", lambda: ids <= stack.record().keys(), DELIVERED_S)
    record = stack.record()
    tries = sum(entry["ok"] for entry in record.values())
    say(
        f"{len(ids & record.keys())} of them delivered after {time.monotonic() - began_s:.1f} s, "
        f"{tries - len(record)} more than once"
    )
    return len(ids) == HOOKS and ids <= record.keys()


def main() -> int:
    parser = argparse.ArgumentParser(prog="kafka-demo", description=__doc__)
    parser.add_argument("--once", action="store_true", help="end after the count")
    once = parser.parse_args().once
    with tempfile.TemporaryDirectory(prefix="ankusa-kafka-demo-") as name:
        try:
            with running(Path(name)) as stack:
                adds_up = story(stack)
                if not once:
                    where = ", ".join(f"{node} :{port}" for node, port in stack.ports.items())
                    say(f"serving until Ctrl-C: {where}; admin token {TOKEN}")
                    signal.pause()
                return 0 if adds_up else 1
        except KeyboardInterrupt:
            return 0
        except (DemoError, brokers.BrokerUnavailableError) as error:
            sys.stderr.write(f"{error}\n")
            return 1


if __name__ == "__main__":
    sys.exit(main())
