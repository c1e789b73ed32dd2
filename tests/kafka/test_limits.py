"""Overrides of rate limits set at one worker: they hold at every edge, are shown by every worker, and outlive all."""

from __future__ import annotations

from pathlib import Path

import pytest
from kafka import KafkaProducer

from ankusa.demo.ask import ask
from schemas.records import LimitChange, encode
from tests.kafka.delivering import MODULE, Admin, delivering_fleet, edge, ending, owns, worker
from tests.kafka.folding import WorkerProcess, until
from tests.kafka.nodes import Served, serving
from tests.support.node_process import free_ports

LIMIT = "/v1/tenants/default/rate-limit"
NOWHERE = "http://127.0.0.1:1/nobody"
BURST = {"rate": 0.001, "burst": 2}


def taken(served: Served) -> int:
    """Hooks that are taken until one is refused for the rate; at most five."""
    for number in range(5):
        status, answer = served.post("orders", {"n": number})
        if status == 429:
            assert answer["error"] == "rate_limited"
            return number
        assert status == 201, answer
    return 5


@pytest.mark.soak
def test_an_override_is_the_fleets_and_outlives_its_processes(broker: str, tmp_path: Path) -> None:
    fleet = delivering_fleet(broker, partitions=2)
    ports = free_ports(2)
    first, second = (Admin(port) for port in ports)
    processes = [worker(fleet, tmp_path / str(index), NOWHERE, port) for index, port in enumerate(ports)]
    with ending(processes), edge(fleet, tmp_path / "edge") as served:
        for process in processes:
            owns(process, 1)
        assert first.get(LIMIT)["source"] == "none"
        assert taken(served) == 5
        assert first.status("DELETE", LIMIT) == 404
        assert ask(ports[0], "PUT", LIMIT, BURST)[0] == 200
        assert first.get(LIMIT) == {"tenant": "default", "source": "override", **BURST}
        until(lambda: second.get(LIMIT)["source"] == "override", "the other worker shows it")
        assert [entry["tenant"] for entry in second.get("/v1/rate-limits")["tenants"]] == ["default"]
        until(lambda: taken(served) == 0, "the edge goes by it")
        with edge(fleet, tmp_path / "later") as later:  # one that begins goes by it from its first hook on
            assert taken(later) == 2
        processes[1].kill()
        processes[1].start()
        until(lambda: _shows(second, "override"), "a worker that begins shows it")
        assert second.status("DELETE", LIMIT) == 204
        until(lambda: first.get(LIMIT)["source"] == "none", "the first worker has it no more")
        until(lambda: taken(served) == 5, "nor has the edge")
        for process in processes:
            assert process.stop() == 0, process.output()


def _shows(node: Admin, source: str) -> bool:
    try:
        return bool(node.get(LIMIT)["source"] == source)
    except OSError:
        return False


@pytest.mark.soak
def test_the_pens_bound_is_the_fleets(broker: str, tmp_path: Path) -> None:
    """What is held of one edge counts at another, and room that a purge makes too."""
    bound = {"quarantine": {"max_bytes": 20_000, "burst": 1000, "rate": 1000}}
    verify = {"type": "github", "secret": "s" * 16}
    sink = {"type": "http", "url": "http://192.0.2.1/nobody"}
    source = {"orders": {"verify": verify, "on_verify_failure": "quarantine", "sinks": [sink]}}
    sections = {"egress": {"allow": ["192.0.2.0/24"]}, "sources": source, **bound}
    fleet = delivering_fleet(broker, partitions=2)
    port = free_ports(1)[0]
    process = WorkerProcess(fleet, tmp_path / "worker", MODULE, admin={"port": port}, **sections)
    with (
        ending([process]),
        serving(tmp_path / "one", fleet.config, **sections) as one,
        serving(tmp_path / "two", fleet.config, **sections) as two,
    ):
        owns(process, 2)
        body = {"text": "x" * 1000}
        for _ in range(19):
            assert one.post("orders", body)[0] == 202
        # Full to a hook or so: what comes is held until workers have told, and then nothing is.
        until(lambda: two.post("orders", body)[0] == 503, "the other edge refuses")
        status, answer = two.post("orders", body)
        assert (status, answer["error"]) == (503, "quarantine_full")
        until(lambda: one.post("orders", body)[0] == 503, "the first edge refuses too")
        held_bytes = Admin(port).get("/v1/quarantine")["bytes"]
        assert 20_000 * 0.9 < held_bytes < 20_000 * 4
        assert ask(port, "DELETE", "/v1/quarantine?limit=1000")[0] == 200
        until(lambda: two.post("orders", body)[0] == 202, "there is room again")
        assert process.stop() == 0, process.output()


def test_a_damaged_one_leaves_the_last_and_sources_of_files_need_no_source_store(broker: str, tmp_path: Path) -> None:
    fleet = delivering_fleet(broker, partitions=2)
    producer = KafkaProducer(bootstrap_servers=broker, acks="all")
    for key, value in (
        ("limit/default", encode(LimitChange("default", 1, 0.001, 1))),
        ("limit/default", b"damaged"),
        ("limit/other", encode(LimitChange("other", 1, None, None))),
        ("acme.orders", b"no source, and not asked for"),
    ):
        producer.send(fleet.names.sources, value=value, key=key.encode()).get(30)
    producer.close()
    with serving(tmp_path, fleet.config, egress={"allow": ["192.0.2.0/24"]}) as served:
        assert taken(served) == 1
        assert f"event=record_set_aside topic={fleet.names.sources} partition=0 offset=1" in served.log()
        assert "event=limits_taken tenants=2" in served.log()
