"""A broker in a container, by testcontainers, where a Docker daemon answers and has or gets the image."""

from __future__ import annotations

import contextlib
import gc
import os
import sys
import time
import warnings
from contextlib import suppress
from pathlib import Path

import docker
from testcontainers.core.container import DockerContainer

from tests.support import brokers

IMAGE = "apache/kafka:3.9.1"
START_S = 120.0


def answers() -> bool:
    """Whether there is a Docker daemon to ask."""
    host = os.environ.get("DOCKER_HOST", "unix:///var/run/docker.sock")
    if host.startswith("unix://") and not Path(host.removeprefix("unix://")).is_socket():
        return False
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)  # the client of a daemon that is not there leaves its socket
        try:
            with contextlib.closing(docker.from_env(timeout=5)) as client:
                client.ping()
        except docker.errors.DockerException:
            gc.collect()
            return False
    return True


def start() -> tuple[DockerContainer, str] | None:
    """A started broker and its address; None, said loudly, when Docker cannot run one: no image, no network, no rights.

    It listens and is reached on one port, so that what it says of itself is true outside of the container too.
    """
    (port,) = brokers.free_ports(1)
    container = DockerContainer(IMAGE).with_bind_ports(port, port)
    for name, value in _settings(port).items():
        container.with_env(f"KAFKA_{name}", value)
    try:
        container.start()
        _await(port)
    except (docker.errors.DockerException, TimeoutError, OSError) as error:
        sys.stderr.write(f"Docker answers and cannot run {IMAGE}, so the jars are tried: {error}\n")
        with suppress(Exception):
            container.stop()
        return None
    return container, f"127.0.0.1:{port}"


def _settings(port: int) -> dict[str, str]:
    return {
        "NODE_ID": "1",
        "PROCESS_ROLES": "broker,controller",
        "LISTENERS": f"PLAINTEXT://:{port},CONTROLLER://:9093",
        "ADVERTISED_LISTENERS": f"PLAINTEXT://127.0.0.1:{port}",
        "LISTENER_SECURITY_PROTOCOL_MAP": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
        "CONTROLLER_LISTENER_NAMES": "CONTROLLER",
        "CONTROLLER_QUORUM_VOTERS": "1@localhost:9093",
        "OFFSETS_TOPIC_REPLICATION_FACTOR": "1",
        "TRANSACTION_STATE_LOG_REPLICATION_FACTOR": "1",
        "TRANSACTION_STATE_LOG_MIN_ISR": "1",
        "GROUP_INITIAL_REBALANCE_DELAY_MS": "0",
        "AUTO_CREATE_TOPICS_ENABLE": "false",
        "LOG_CLEANER_BACKOFF_MS": "500",
    }


def _await(port: int) -> None:
    """Until a client is let in. Docker's own proxy takes connections before the broker does, and closes them."""
    from kafka import KafkaAdminClient
    from kafka.errors import KafkaError

    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline:
        with suppress(KafkaError, OSError):
            KafkaAdminClient(bootstrap_servers=f"127.0.0.1:{port}", request_timeout_ms=2000).close()
            return
        time.sleep(0.2)
    raise TimeoutError(f"the broker was not ready within {START_S:.0f} s")
