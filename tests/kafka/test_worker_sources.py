"""Sources set up at one worker: taken by every edge, delivered by every worker, and gone when they are deleted."""

from __future__ import annotations

import json
from pathlib import Path

from schemas.records import ChangeAction, decode_change
from tests.kafka.delivering import Admin, arrived, delivering_fleet, edge, ending, owns, worker
from tests.kafka.folding import until
from tests.support.load import Load
from tests.support.marked_sink import SinkProcess
from tests.support.node_process import free_ports

SOURCES = "/v1/tenants/acme/sources"
WAITS_FOR_A_PARTITION = 50


def test_a_source_set_up_at_a_worker_is_the_fleets(broker: str, tmp_path: Path) -> None:
    fleet = delivering_fleet(broker, partitions=2)
    ports = free_ports(2)
    nodes = [Admin(port) for port in ports]
    with SinkProcess(tmp_path) as sink, edge(fleet, tmp_path / "edge") as served:
        processes = [worker(fleet, tmp_path / "first", sink.url, ports[0])]
        with ending(processes):
            owns(processes[0], 2)
            processes.append(worker(fleet, tmp_path / "second", sink.url, ports[1]))
            owns(processes[1], 1)
            body = {"name": "bills", "verify": {"type": "none"}, "sinks": [{"type": "http", "url": sink.url}]}
            made = nodes[0].post(SOURCES, body)
            assert made["source_id"] == "acme.bills"
            until(lambda: nodes[1].status("GET", f"{SOURCES}/bills") == 200, "the other worker shows it")
            until(lambda: served.post("acme.bills")[0] == 201, "the edge takes it")
            with Load(served.http_port, "/webhooks/acme.bills", most=WAITS_FOR_A_PARTITION, connections=4) as load:
                load.wait_accepted(WAITS_FOR_A_PARTITION)
            arrived(sink, load.ids)
            until(lambda: all(_settled(node) for node in nodes), "nothing is left of it")
            assert nodes[1].status("DELETE", f"{SOURCES}/bills") == 204
            until(lambda: nodes[0].status("GET", f"{SOURCES}/bills") == 404, "the first worker has it no more")
            until(lambda: served.post("acme.bills")[0] == 404, "nor has the edge")
            changes = [decode_change(record.value) for record in fleet.read(fleet.names.audit)]
            assert [change.action for change in changes] == [ChangeAction.CREATED, ChangeAction.DELETED]
            assert {json.loads(change.entity)["source_id"] for change in changes} == {"acme.bills"}
            for process in processes:
                assert process.stop() == 0, process.output()


def _settled(node: Admin) -> bool:
    rows = node.get("/v1/stats")["rows"]
    return not any(rows.values())
