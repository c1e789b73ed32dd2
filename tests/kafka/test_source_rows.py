"""A source is deleted by what its rows do in the whole fleet, whichever worker is asked."""

from __future__ import annotations

from pathlib import Path

import pytest

from ankusa.demo.ask import ask
from tests.kafka.delivering import Admin, delivering_fleet, edge, ending, owns, worker
from tests.kafka.folding import until
from tests.support.node_process import free_ports

SOURCES = "/v1/tenants/acme/sources"
HOOKS = 12
NOWHERE = "http://127.0.0.1:1/nobody"
BODY = {
    "name": "bills",
    "verify": {"type": "none"},
    "retry": {"base_ms": 600_000, "max_ms": 600_000},
    "sinks": [{"type": "http", "url": NOWHERE}],
}


def rows(node: Admin, state: str) -> int:
    return int(node.get("/v1/stats")["rows"][state])


@pytest.mark.soak
def test_rows_at_another_worker_keep_a_source_and_die_with_it(broker: str, tmp_path: Path) -> None:
    fleet = delivering_fleet(broker, partitions=2)
    ports = free_ports(2)
    nodes = [Admin(port) for port in ports]
    processes = [worker(fleet, tmp_path / "first", NOWHERE, ports[0])]
    with ending(processes), edge(fleet, tmp_path / "edge") as served:
        owns(processes[0], 2)
        processes.append(worker(fleet, tmp_path / "second", NOWHERE, ports[1]))
        owns(processes[1], 1)
        nodes[0].post(SOURCES, BODY)
        until(lambda: served.post("acme.bills")[0] == 201, "the edge takes it")
        for number in range(HOOKS - 1):
            served.accepted("acme.bills", {"n": number})
        until(
            lambda: sum(rows(node, "pending") for node in nodes) == HOOKS,
            "all wait, whoever heard of the source first",
        )
        assert all(rows(node, "pending") for node in nodes), "each has some"
        for port in ports:
            status, answer = ask(port, "DELETE", f"{SOURCES}/bills")
            assert (status, answer["error"]) == (409, "source_has_deliveries")
            assert (answer["pending"], answer["inflight"]) == (HOOKS, 0)
        assert ask(ports[0], "DELETE", f"{SOURCES}/bills?deliveries=dead_letter")[0] == 204
        until(lambda: sum(rows(node, "dead") for node in nodes) == HOOKS, "all are dead")
        assert all(rows(node, "pending") == 0 for node in nodes)
        until(lambda: served.post("acme.bills")[0] == 404, "the edge has it no more")
        found = {record.key.decode(): record.value for record in fleet.read(fleet.names.sources)}
        until(lambda: not _left(fleet.read(fleet.names.sources)), "nothing is left of the questions")
        assert any(key.startswith("told/") for key in found)
        for process in processes:
            assert process.stop() == 0, process.output()


def _left(records: list[object]) -> set[str]:
    last = {record.key.decode(): record.value for record in records}  # type: ignore[attr-defined]
    return {key for key, value in last.items() if value is not None}
