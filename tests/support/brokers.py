"""Real servers for the broker tests, each started on loopback with its data in a directory of its own.

`tests/support/install_brokers.sh` installs them. `required` is how a fixture starts one: a server that cannot be
started fails the test under `CI=true` and skips it, with the reason, anywhere else. This is the one place in the tests
that may skip.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

import pytest

from tests.support.node_process import free_ports

START_S = 180.0  # a broker of the Java or Erlang kind on a busy machine
STOP_S = 20.0
CACHE = Path(os.environ.get("ANKUSA_TEST_CACHE", "~/.cache/ankusa-tests")).expanduser()
SYSTEM_PATH = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"

S = TypeVar("S")


class BrokerUnavailableError(Exception):
    """A server cannot be started here; the text says why and what to run."""


def required(start: Callable[[], S]) -> S:
    """What `start` starts. Where it cannot: a failure under `CI=true`, else a skip that says so."""
    try:
        return start()
    except BrokerUnavailableError as error:
        if os.environ.get("CI") == "true":
            raise
        pytest.skip(f"NOT TESTED, no broker: {error}")


class Server:
    """One started server: `port` is where clients connect, on 127.0.0.1."""

    def __init__(
        self, command: Sequence[str], port: int, home: Path, env: Mapping[str, str] | None = None, ready: str = ""
    ) -> None:
        """Start `command` and wait until `port` is open and its output has `ready`."""
        self.port = port
        self._command = command
        self._home = home
        self._env = {**os.environ, "PATH": SYSTEM_PATH, **(env or {})}
        self._ready = ready
        self._output = home / "output"
        self.start_again()

    def start_again(self) -> None:
        """Start it on the port and the data it had, after `stop` or `kill`."""
        with self._output.open("wb") as output:
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=self._home,
                env=self._env,
                start_new_session=True,
            )
        try:
            self._await(self._command[0], self._ready)
        except BaseException:
            self.stop()
            raise

    @property
    def pid(self) -> int:
        return self._process.pid

    def kill(self) -> None:
        """End it as a crash does, with nothing said or written."""
        self._process.kill()
        self._process.wait()

    def stop(self) -> None:
        """End the server and everything it started, however it takes it."""
        for end in (self._process.terminate, self._process.kill):
            if self._process.poll() is None:
                end()
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self._process.wait(STOP_S)

    def _await(self, name: str, ready: str) -> None:
        deadline = time.monotonic() + START_S
        while not (self._is_open() and ready in self._output.read_text(errors="replace")):
            if self._process.poll() is not None:
                raise BrokerUnavailableError(
                    f"{name} ended at once: {self._output.read_text(errors='replace')[-2000:]}"
                )
            if time.monotonic() > deadline:
                raise BrokerUnavailableError(f"{name} was not ready within {START_S:.0f} s")
            time.sleep(0.05)

    def _is_open(self) -> bool:
        with socket.socket() as probe:
            probe.settimeout(0.5)
            return probe.connect_ex(("127.0.0.1", self.port)) == 0


def _command(name: str, *elsewhere: str) -> str:
    found = shutil.which(name, path=SYSTEM_PATH) or next((path for path in elsewhere if Path(path).exists()), None)
    if found is None:
        raise BrokerUnavailableError(f"{name} is not installed: run tests/support/install_brokers.sh")
    return found


def redis(home: Path) -> Server:
    """Redis without persistence; user `hook` with password `hush` may only publish to `allowed`."""
    (port,) = free_ports(1)
    config = home / "redis.conf"
    config.write_text(
        f'bind 127.0.0.1\nport {port}\nsave ""\ndir {home}\nuser hook on >hush &allowed +publish +client +auth +hello\n'
    )
    return Server([_command("redis-server"), str(config)], port, home, ready="Ready to accept connections")


def nats(home: Path, settings: str = "") -> Server:
    """NATS with JetStream. `settings` goes into its configuration file."""
    (port,) = free_ports(1)
    config = home / "nats.conf"
    config.write_text(f'listen: "127.0.0.1:{port}"\njetstream: {{store_dir: "{home}/js"}}\n{settings}\n')
    return Server([_command("nats-server"), "-c", str(config)], port, home, ready="Server is ready")


class RabbitMQ(Server):
    """RabbitMQ with user `guest`, password `guest`, and the port mapper it needs, both of its own."""

    def __init__(self, home: Path) -> None:
        port, distribution, mapper = free_ports(3)
        erlang = {"ERL_EPMD_PORT": str(mapper), "ERL_EPMD_ADDRESS": "127.0.0.1", "HOME": str(home)}
        (home / "mapper").mkdir()
        self._mapper = Server(
            [_command("epmd"), "-address", "127.0.0.1", "-port", str(mapper)], mapper, home / "mapper"
        )
        config = home / "rabbitmq.conf"
        config.write_text(f"listeners.tcp.1 = 127.0.0.1:{port}\nmax_message_size = 4000000\n")
        (home / "plugins").write_text("[].\n")
        # Not the wrapper in /usr/sbin: that one wants to be root or `rabbitmq`, and changes to the latter.
        server = "/usr/lib/rabbitmq/bin/rabbitmq-server"
        env = {
            **erlang,
            "RABBITMQ_NODENAME": f"ankusa-{port}@localhost",
            "RABBITMQ_DIST_PORT": str(distribution),
            "RABBITMQ_CONFIG_FILE": str(config),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(home / "plugins"),
            "RABBITMQ_MNESIA_BASE": str(home / "mnesia"),
            "RABBITMQ_LOG_BASE": str(home / "log"),
            "RABBITMQ_CONF_ENV_FILE": str(home / "none"),
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "-kernel inet_dist_use_interface {127,0,0,1} +S 2:2",
            "ERL_CRASH_DUMP_BYTES": "0",
        }
        try:
            super().__init__([_command(server, server)], port, home, env, "Starting broker... completed")
        except BaseException:
            self._mapper.stop()
            raise

    def stop(self) -> None:
        super().stop()
        self._mapper.stop()


class Kafka(Server):
    """One Kafka broker in KRaft mode. Clients are told to come to `advertised`, such as a proxy's port."""

    def __init__(self, home: Path, port: int, advertised: int, settings: Mapping[str, str] | None = None) -> None:
        jars = sorted(CACHE.glob("kafka-*/.complete"))
        if not jars:
            raise BrokerUnavailableError("Kafka's jars are not there: run tests/support/install_brokers.sh")
        (controller,) = free_ports(1)
        properties = home / "server.properties"
        settings = {
            "process.roles": "broker,controller",
            "node.id": "1",
            "controller.quorum.voters": f"1@127.0.0.1:{controller}",
            "listeners": f"PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}",
            "advertised.listeners": f"PLAINTEXT://127.0.0.1:{advertised}",
            "controller.listener.names": "CONTROLLER",
            "log.dirs": str(home / "data"),
            "offsets.topic.replication.factor": "1",
            "transaction.state.log.replication.factor": "1",
            "transaction.state.log.min.isr": "1",
            "group.initial.rebalance.delay.ms": "0",
            **(settings or {}),
        }
        properties.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
        (home / "log4j.properties").write_text(
            "log4j.rootLogger=WARN, out\nlog4j.logger.kafka.server.KafkaRaftServer=INFO\n"
            "log4j.appender.out=org.apache.log4j.ConsoleAppender\nlog4j.appender.out.layout=org.apache.log4j.SimpleLayout\n"
        )
        java = [_command("java"), "-Xmx384m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"]
        java += [f"-Dlog4j.configuration=file:{home}/log4j.properties", "-cp", f"{jars[-1].parent}/*"]
        format_ = [*java, "kafka.tools.StorageTool", "format", "-t", "AAAAAAAAAAAAAAAAAAAAAQ", "-c", str(properties)]
        done = subprocess.run(format_, capture_output=True, text=True, timeout=START_S)
        if done.returncode != 0:
            raise BrokerUnavailableError(f"Kafka cannot format its directory: {done.stdout[-500:]}{done.stderr[-500:]}")
        super().__init__([*java, "kafka.Kafka", str(properties)], port, home, ready="Kafka Server started")
