"""One replay over a fleet: one command, a part in each partition, exact counts while partitions move."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest

from ankusa.demo.ask import ask
from tests.kafka.delivering import Admin, arrived, delivering_fleet, edge, ending, owns, worker
from tests.kafka.folding import until
from tests.support.load import Load
from tests.support.marked_sink import SinkProcess
from tests.support.node_process import free_ports

HOOKS = 1200


@pytest.mark.soak
def test_a_replay_moves_every_dead_row_once_while_a_partition_moves(broker: str, tmp_path: Path) -> None:
    """Started at one of two nodes; a third joins in the middle. What each node shows adds up."""
    fleet = delivering_fleet(broker)
    ports = free_ports(3)
    nodes = [Admin(port) for port in ports]
    with SinkProcess(tmp_path) as sink, edge(fleet, tmp_path / "edge") as served:
        sink.behave(status=410)
        processes = [worker(fleet, tmp_path / "first", sink.url, ports[0])]
        with ending(processes):
            owns(processes[0], 4)
            processes.append(worker(fleet, tmp_path / "second", sink.url, ports[1]))
            owns(processes[1], 2)
            with Load(served.http_port, "/webhooks/orders", most=HOOKS, connections=8) as load:
                load.wait_accepted(HOOKS)
            dead = len(load.accepted)
            until(lambda: sum(_dead(node) for node in nodes[:2]) == dead, "every row is dead")
            sink.behave(status=200)
            job = nodes[1].post("/v1/replays", {"kind": "dlq", "rate": 300})
            until(lambda: sum(_part(node, job["id"])["moved"] for node in nodes[:2]) > dead // 4, "some are moved")
            processes.append(worker(fleet, tmp_path / "third", sink.url, ports[2]))
            owns(processes[2], 1)
            arrived(sink, load.ids)
            # While a partition is on its way to its next owner, no node shows its part.
            until(lambda: sum(_part(node, job["id"])["delivered"] for node in nodes) == dead, "all is counted")
            until(lambda: all(_part(node, job["id"])["state"] == "done" for node in nodes), "the job is done")
            jobs = [_part(node, job["id"]) for node in nodes]
            print(f"\n{dead} dead; moved {[one['moved'] for one in jobs]}; arrived {sink.by_id.total()}")
            assert sum(one["moved"] for one in jobs) == dead
            assert sum(_dead(node) for node in nodes) == 0
            hook = next(iter(load.ids))
            shown = [node for node in nodes if _shows(node, hook)]
            assert len(shown) == 1
            for node in nodes:
                assert "ankusa_" in _metrics(node)
            for process in processes:
                assert process.stop() == 0, process.output()


def _dead(node: Admin) -> int:
    return int(node.get("/v1/dlq")["total"])


def _part(node: Admin, job_id: str) -> dict[str, Any]:
    """What a node shows of a job. One that owns nothing now shows nothing."""
    status, answer = ask(node.port, "GET", f"/v1/replays/{job_id}")
    return answer if status == 200 else {"moved": 0, "delivered": 0, "state": ""}


def _shows(node: Admin, hook_id: str) -> bool:
    return ask(node.port, "GET", f"/v1/hooks/{hook_id}")[0] == 200


def _metrics(node: Admin) -> str:
    with urlopen(f"http://127.0.0.1:{node.port}/metrics") as answer:
        return str(answer.read().decode())
