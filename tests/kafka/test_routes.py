"""The route guard of a fleet on a real broker: one table for all workers, and edges go by it whoever changed it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from ankusa.demo.ask import ask
from ankusa.routes.answers import Duplicate
from schemas.config import Routes
from schemas.records import ChangeAction, RouteChange, decode_change, encode
from schemas.routes import Route
from streams.kafka.source_feed import SourceFeed
from tests.contract.guarded import KafkaGuarded, answer, soon
from tests.kafka.delivering import MODULE, ending
from tests.kafka.folding import Fleet, WorkerProcess, in_loop, until
from tests.kafka.nodes import Served, serving
from tests.support.node_process import children, free_port, free_ports

ORDERS, BILLS = "/webhooks/orders", "/webhooks/bills"


@in_loop
async def test_workers_that_change_routes_at_once_judge_by_each_other(broker: str) -> None:
    fleet = Fleet(broker, partitions=1)
    seed = ({"id": "seeded", "path": "/webhooks/seeded"},)
    nodes = [KafkaGuarded(fleet, seed=seed, max_routes=3) for _ in range(2)]
    await asyncio.gather(*(node.open() for node in nodes))  # each would plant the seed
    found = await asyncio.gather(*(node.store.create({"id": "orders", "path": ORDERS}) for node in nodes))
    assert sorted(type(one).__name__ for one in found) == ["Duplicate", "Route"]
    # What one did a moment ago, the other judges by.
    assert isinstance(await nodes[0].store.create({"id": "bills", "path": BILLS}), Route)
    assert await nodes[1].store.create({"path": BILLS}) == Duplicate("bills")
    assert await nodes[1].store.delete("bills") is None
    assert isinstance(await nodes[0].store.create({"id": "again", "path": BILLS}), Route)
    for node in nodes:
        await soon(lambda node=node: answer(node.edge, BILLS) == 0, "each edge goes by it")  # type: ignore[misc]
        await soon(lambda node=node: len(node.store) == 3, "each worker knows it")  # type: ignore[misc]
    told = [(change.subject, change.action) for change in await nodes[0].audit()]
    made = [(name, ChangeAction.CREATED) for name in ("seeded", "orders", "bills")]
    assert told == [*made, ("bills", ChangeAction.DELETED), ("again", ChangeAction.CREATED)]
    for node in nodes:
        await node.close()


@pytest.mark.parametrize("damaged", [b"\xff", encode(RouteChange("another", 1, None))])
@in_loop
async def test_a_stored_route_that_cannot_be_read_ends_who_begins_and_changes_nothing_later(
    broker: str, damaged: bytes
) -> None:
    """Without it an address might be let through that it denies."""
    fleet = Fleet(broker, partitions=1)
    running = KafkaGuarded(fleet)
    await running.open()
    assert isinstance(await running.store.create({"id": "orders", "path": ORDERS}), Route)
    await soon(lambda: answer(running.edge, ORDERS) == 0, "the edge goes by it")
    fleet.producer.produce(fleet.names.sources, damaged, b"route/orders", 0)
    assert fleet.producer.flush(20) == 0
    await soon(lambda: running.feed.passed.count == 1, "it is passed over")
    assert answer(running.edge, ORDERS) == 0
    await running.close()
    off = SourceFeed(msgspec.structs.replace(running.config, routes=Routes()), _never, lambda limits: None)
    await asyncio.wait_for(off.read, 20)  # one whose guard is off does not go by it
    await off.close()
    feed = SourceFeed(running.config, _never, lambda limits: None)
    assert "route/orders is damaged" in str(await asyncio.wait_for(feed.failed, 20))
    await feed.close()


def _never(update: object) -> None:
    raise AssertionError("nothing is told")


class Guarded:
    """Workers of a fleet as processes, each with its listener of routes, and an edge."""

    def __init__(self, fleet: Fleet, folder: Path, served: Served) -> None:
        self.fleet = fleet
        self.served = served
        self.ports = free_ports(2)
        self.workers = [self._worker(folder / f"worker-{port}", port) for port in self.ports]

    def _worker(self, folder: Path, port: int) -> WorkerProcess:
        routes = {"enabled": True, "admin": {"port": port}}
        return WorkerProcess(self.fleet, folder, MODULE, routes=routes, admin={"enabled": False})

    def set_up(self, worker: int, method: str, path: str, body: dict[str, Any] | None = None) -> int:
        return ask(self.ports[worker], method, path, body)[0]

    def listens(self, worker: int) -> bool:
        assert self.workers[worker].process.poll() is None, self.workers[worker].output()
        try:
            return self.set_up(worker, "GET", "/health") == 200
        except OSError:
            return False

    def posted(self, status: int) -> None:
        def answered() -> bool:
            with contextlib.suppress(OSError):  # an edge that was killed
                return self.served.post("orders")[0] == status
            return False

        until(answered, f"a hook is answered {status}")


@contextlib.contextmanager
def guarded(broker: str, folder: Path) -> Iterator[Guarded]:
    fleet = Fleet(broker, partitions=2)
    routes = {"enabled": True, "admin": {"port": free_port()}}
    with serving(folder / "edge", fleet.config, routes=routes) as served:
        fleet_of = Guarded(fleet, folder, served)
        with ending(fleet_of.workers):
            yield fleet_of


@pytest.mark.soak
def test_edges_go_by_routes_that_any_worker_set_up_through_kills_of_each(broker: str, tmp_path: Path) -> None:
    with guarded(broker, tmp_path) as fleet:
        for number in (0, 1):
            until(lambda number=number: fleet.listens(number), "it listens")  # type: ignore[misc]
        fleet.posted(404)
        assert fleet.set_up(0, "PUT", "/admin/routes/orders", {"path": ORDERS}) == 201
        fleet.posted(201)
        # Its worker goes, with its disk; the route stays, at the other worker and at an edge that begins anew.
        fleet.workers[0].kill()
        assert fleet.set_up(1, "GET", "/admin/routes/orders") == 200
        (edge,) = children(fleet.served.process.pid)

        os.kill(edge, 9)
        fleet.posted(201)
        deny = {"rules": [{"action": "deny", "cidr": "127.0.0.0/8"}]}
        assert fleet.set_up(1, "PUT", "/admin/ip-rules", deny) == 200
        fleet.posted(403)
        fleet.workers[0].start()
        until(lambda: fleet.listens(0), "it listens again")
        assert ask(fleet.ports[0], "GET", "/admin/ip-rules")[1]["rules"] == deny["rules"]
        assert fleet.set_up(0, "DELETE", "/admin/routes/orders") == 204
        assert fleet.set_up(0, "PUT", "/admin/ip-rules", {}) == 200
        fleet.posted(404)
        changes = [decode_change(record.value) for record in fleet.fleet.read(fleet.fleet.names.audit)]
        assert [json.loads(change.entity).get("id") for change in changes] == ["orders", None, "orders", None]
        for worker in fleet.workers:
            assert worker.stop() == 0, worker.output()
