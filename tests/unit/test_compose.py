"""The compose stack against itself and the product: what `docker compose config` would refuse, and what it cannot see.

There need be no Docker where this runs. It knows the part of the compose language that the file uses, and refuses the
rest.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from ankusa.config import load, yaml_file
from ankusa.config.problems import Problems
from ankusa.demo import sink
from schemas.config import Config
from streams.kafka.topics import min_insync_replicas

ROOT = Path(__file__).parents[2]
COMPOSE = ROOT / "compose"
STACK: dict[str, Any] = yaml.safe_load((COMPOSE / "docker-compose.yml").read_text())
SERVICES: dict[str, dict[str, Any]] = STACK["services"]
BROKERS = ["kafka-1", "kafka-2", "kafka-3"]
NODES = ["topics", "edge-1", "edge-2", "worker-1", "worker-2"]

KEYS = {
    *("image", "build", "restart", "environment", "healthcheck", "configs", "depends_on", "stop_grace_period"),
    *("hostname", "volumes", "ports", "command", "entrypoint"),
}
NESTED = {
    "build": {"context", "dockerfile"},
    "healthcheck": {"test", "interval", "timeout", "retries"},
    "configs": {"source", "target"},
    "depends_on": {"condition"},
}
"""Keys of the mappings in a service."""

DURATION = re.compile(r"\d+(ms|s|m|h)")
CONDITIONS = {"service_started", "service_healthy", "service_completed_successfully"}
REFERENCE = re.compile(r"\$\{(\w+):-([^}]*)\}")


def resolved(value: object) -> str:
    """A value of the environment as a container gets it, with nothing set outside."""
    return REFERENCE.sub(lambda match: match[2], str(value))


def environment(name: str) -> dict[str, str]:
    return {key: resolved(value) for key, value in SERVICES[name]["environment"].items()}


def config_of(name: str) -> Config:
    return load(str(COMPOSE / "ankusa.yaml"), environment(name))


def ports() -> dict[tuple[str, int], str]:
    """`(service, port in it)` by address on this machine."""
    found: dict[tuple[str, int], str] = {}
    for name, service in SERVICES.items():
        for text in service.get("ports", ()):
            ip, outer, inner = text.split(":")
            found[name, int(inner)] = f"{ip}:{outer}"
    return found


def test_the_stack_is_what_it_should_be() -> None:
    assert sorted(SERVICES) == sorted([*BROKERS, *NODES, "sink", "prometheus"])
    assert {key for key in STACK if not key.startswith("x-")} == {"name", "services", "configs", "volumes"}


@pytest.mark.parametrize("name", ["docker-compose.yml", "ankusa.yaml", "prometheus.yml"])
def test_no_key_is_given_twice(name: str) -> None:
    problems = Problems()
    assert yaml_file.read(str(COMPOSE / name), problems)
    problems.raise_if_any()


@pytest.mark.parametrize("name", SERVICES)
def test_what_a_service_says_of_itself_is_known(name: str) -> None:
    service = SERVICES[name]
    mappings = [(key, service[key]) for key in ("build", "healthcheck") if key in service]
    mappings += [("configs", entry) for entry in service.get("configs", ())]
    mappings += [("depends_on", how) for how in service.get("depends_on", {}).values()]
    for key, mapping in mappings:
        assert mapping.keys() <= NESTED[key], key
    health = service.get("healthcheck", {})
    for duration in (health.get("interval", "1s"), health.get("timeout", "1s"), service.get("stop_grace_period", "1s")):
        assert DURATION.fullmatch(duration)
    assert not health or health["test"][0] == "CMD"
    assert isinstance(health.get("retries", 1), int)
    words = [*service.get("command", ()), *service.get("entrypoint", ()), *health.get("test", ())]
    assert all(isinstance(word, str) for word in words)  # compose takes no number for a word


@pytest.mark.parametrize("name", SERVICES)
def test_a_service_is_whole(name: str) -> None:
    service = SERVICES[name]
    assert service.keys() <= KEYS
    assert re.search(r":v?\d+\.\d+\.\d+$", service["image"]) or "build" in service  # pulled images are pinned
    assert service["restart"] in ("unless-stopped", "on-failure")
    for other, how in service.get("depends_on", {}).items():
        assert other in SERVICES
        assert how["condition"] in CONDITIONS
        if how["condition"] == "service_healthy":
            assert "healthcheck" in SERVICES[other]
    for key, value in service.get("environment", {}).items():
        assert isinstance(value, str | int), key  # a bare `false` or a list is refused by compose
        assert not isinstance(value, bool), key
        assert "$" not in resolved(value), key
    for entry in service.get("configs", ()):
        assert entry["source"] in STACK["configs"]
    for volume in service.get("volumes", ()):
        source, target = volume.split(":")
        assert source in STACK["volumes"]
        assert target.startswith("/")


def test_no_two_containers_share_a_volume_and_none_is_left_over() -> None:
    used = [volume.split(":")[0] for service in SERVICES.values() for volume in service.get("volumes", ())]
    assert sorted(used) == sorted(STACK["volumes"])


def test_files_that_are_named_exist() -> None:
    for entry in STACK["configs"].values():
        assert "content" in entry or (COMPOSE / entry["file"]).is_file()
    for service in SERVICES.values():
        if "build" in service:
            assert (COMPOSE / service["build"]["context"]).resolve() == ROOT
            assert (ROOT / service["build"]["dockerfile"]).is_file()


def test_everything_is_on_loopback_and_no_port_is_given_twice() -> None:
    addresses = list(ports().values())
    assert len(addresses) == len(set(addresses))
    assert all(address.startswith("127.0.0.1:") for address in addresses)


def test_brokers_are_one_quorum() -> None:
    voters = {f"{number}@{name}:9093" for number, name in enumerate(BROKERS, 1)}
    for number, name in enumerate(BROKERS, 1):
        own = environment(name)
        assert set(own["KAFKA_CONTROLLER_QUORUM_VOTERS"].split(",")) == voters
        assert own["KAFKA_NODE_ID"] == str(number)
        assert own["KAFKA_ADVERTISED_LISTENERS"] == f"PLAINTEXT://{name}:9092"
        assert SERVICES[name]["hostname"] == name
        data = own["KAFKA_LOG_DIRS"]
        assert SERVICES[name]["volumes"] == [f"{name}:{data}"]
    assert len({environment(name)["CLUSTER_ID"] for name in BROKERS}) == 1


@pytest.mark.parametrize("name", NODES)
def test_a_node_reads_a_sound_configuration(name: str) -> None:
    config = config_of(name)
    assert config.log.type == "kafka"
    assert config.kafka.brokers == tuple(f"{broker}:9092" for broker in BROKERS)
    assert config.kafka.replication == len(BROKERS)
    assert min_insync_replicas(config.kafka.replication) == 2
    mounted = {entry["target"] for entry in SERVICES[name]["configs"]}
    assert environment(name)["ANKUSA_CONFIG"] in mounted
    assert config.node.roles == ("worker" if name.startswith("worker") else "edge",)
    needed = SERVICES[name]["depends_on"]
    assert set(needed) == (set(BROKERS) if name == "topics" else {"topics"})


def test_ports_lead_to_listeners() -> None:
    listening = {"edge": config_of("edge-1").http.port, "worker": config_of("worker-1").admin.port}
    for number in (1, 2):
        for role, port in listening.items():
            name = f"{role}-{number}"
            assert (name, port) in ports()
            assert f"127.0.0.1:{port}/ready" in SERVICES[name]["healthcheck"]["test"][3]
    assert config_of("worker-1").node.data_dir == "/data"
    assert SERVICES["worker-1"]["volumes"] == ["worker-1:/data"]


def test_the_destination_is_the_sink_and_checks_the_same_secret() -> None:
    (destination,) = config_of("worker-1").sources["demo"].sinks
    service = SERVICES["sink"]
    assert destination.options["url"] == "http://sink:9000/"
    assert service["entrypoint"][:3] == ["python", "-m", sink.__name__]
    assert "9000" in service["entrypoint"]
    assert [resolved(part) for part in service["command"]] == [destination.options["secret"]]
    assert ("sink", 9000) in ports()


def test_prometheus_asks_each_worker_with_its_token() -> None:
    document = yaml.safe_load((COMPOSE / "prometheus.yml").read_text())
    assert document.keys() == {"global", "scrape_configs"}
    assert document["global"].keys() == {"scrape_interval"}
    assert DURATION.fullmatch(document["global"]["scrape_interval"])
    (job,) = document["scrape_configs"]
    assert job.keys() == {"job_name", "authorization", "static_configs"}
    port = config_of("worker-1").admin.port
    assert job["static_configs"] == [{"targets": [f"worker-1:{port}", f"worker-2:{port}"]}]
    mounted = {entry["target"]: entry["source"] for entry in SERVICES["prometheus"]["configs"]}
    token = resolved(STACK["configs"][mounted[job["authorization"]["credentials_file"]]]["content"])
    tokens = {entry.token: entry.scopes for entry in config_of("worker-1").admin.tokens}
    assert tokens[token] == ("read",)


def test_what_the_image_is_built_of_exists() -> None:
    lines = (COMPOSE / "Dockerfile").read_text().splitlines()
    bases = [line.split()[1] for line in lines if line.startswith("FROM ")]
    assert bases
    assert all(re.search(r":\d+\.\d+", base) for base in bases)
    copied = [name for line in lines if line.startswith("COPY ") for name in line.split()[1:-1]]
    ignored = (ROOT / ".dockerignore").read_text().splitlines()
    for name in copied:
        assert (ROOT / name).exists(), name
        assert f"!{name}" in ignored, name
    packages = json.loads(re.search(r"^packages = (\[.*\])$", (ROOT / "pyproject.toml").read_text(), re.MULTILINE)[1])  # type: ignore[index]
    assert set(packages) <= set(copied)
