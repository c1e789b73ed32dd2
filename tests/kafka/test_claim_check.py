"""The claim check of a fleet: one reference a hook whoever delivers it, served without a broker, and kept while needed.

Workers and gateways are processes that share a directory of packs; sinks are topics of the same broker, one of which is
not there at first.
"""

from __future__ import annotations

import http.client
import json
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from ankusa.claim_check import pack as packs
from ankusa.claim_check.reference import pack_id
from ankusa.claim_check.retention import DAY_MS
from ankusa.clock import now_ms
from ankusa.demo.ask import ask
from schemas import records
from schemas.config import Sink, Source, Verify
from schemas.records import CheckIn, Topic, decode_check_in, decode_commit, decode_envelope, seq_of
from streams.kafka import places
from tests.kafka.delivering import MODULE, ending, owns
from tests.kafka.folding import Fleet, WorkerProcess, until
from tests.kafka.nodes import Served, serving
from tests.support.gateway import path_of
from tests.support.load import Load
from tests.support.node_process import free_port

pytestmark = pytest.mark.soak

GATEWAY = "streams.kafka.gateway_process"
INLINE_BYTES = 1000
BODY = b'{"large": "' + b"x" * 5 * INLINE_BYTES + b'"}'
HOOKS = 300


class Claiming:
    """A fleet whose source `orders` goes to the topics `first` and `later`, large bodies by reference."""

    def __init__(self, broker: str, folder: Path, partitions: int = 2) -> None:
        self._folder = folder
        self._sinks = [{"brokers": [broker], "topic": f"{folder.name}-{name}"} for name in ("first", "later")]
        self.first, self.later = (str(sink["topic"]) for sink in self._sinks)
        sinks = tuple(Sink(type="kafka", options={**sink, "inline_max_bytes": INLINE_BYTES}) for sink in self._sinks)
        source = Source(name="orders", verify=Verify(type="none"), sinks=sinks)
        self.fleet = Fleet(broker, partitions=partitions, sources={"orders": source})
        self.packs = folder / "packs"
        self.processes: list[WorkerProcess] = []

    def topic(self, name: str) -> None:
        admin = AdminClient({"bootstrap.servers": self.fleet.broker})
        (made,) = admin.create_topics([NewTopic(name, 1, 1)]).values()
        made.result(20)

    def worker(self, name: str, *roles: str, **claim_check: Any) -> WorkerProcess:
        """A worker on a disk of its own, and the gateway too with that role."""
        sinks = [
            {"type": "kafka", **sink, "inline_max_bytes": INLINE_BYTES, "retry": {"base_ms": 200, "max_ms": 1000}}
            for sink in self._sinks
        ]
        return self._started(
            *(name, MODULE, ("worker", *roles)),
            sources={"orders": {"verify": {"type": "none"}, "sinks": sinks}},
            dispatch={"breaker_failures": 0},
            claim_check={"store": {"path": str(self.packs)}, **claim_check},
            admin={"enabled": False},
        )

    def gateway(self, port: int) -> WorkerProcess:
        return self._started(
            "gateway", GATEWAY, ("claim_check",), claim_check={"port": port, "store": {"path": str(self.packs)}}
        )

    def _started(self, name: str, module: str, roles: tuple[str, ...], **sections: Any) -> WorkerProcess:
        node = {"roles": list(roles), "data_dir": str(self._folder / name / "data")}
        self.processes.append(WorkerProcess(self.fleet, self._folder / name, module, node=node, **sections))
        return self.processes[-1]

    def lose(self, worker: WorkerProcess) -> None:
        """Its machine goes away, and its disk with it."""
        worker.kill()
        shutil.rmtree(worker.data)

    def messages(self, topic: str) -> list[dict[str, Any]]:
        return [json.loads(record.value) for record in self.fleet.read(topic)]

    def arrived(self, topic: str, ids: Iterable[str]) -> list[dict[str, Any]]:
        wanted = set(ids)
        until(lambda: wanted <= {message["id"] for message in self.messages(topic)}, f"{topic} has every hook")
        return self.messages(topic)

    @contextmanager
    def edge(self) -> Iterator[Served]:
        with ending(self.processes), serving(self._folder / "edge", self.fleet.config) as served:
            yield served


def redeemed(port: int, claim: str) -> bytes:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    try:
        connection.request("GET", path_of(claim))
        response = connection.getresponse()
        body = response.read()
        assert response.status == 200, body
        return body
    finally:
        connection.close()


def test_each_hook_has_one_reference_through_kills_moves_and_lost_disks(broker: str, tmp_path: Path) -> None:
    claiming = Claiming(broker, tmp_path)
    claiming.topic(claiming.first)
    ports = free_port(), free_port()
    with claiming.edge() as served:
        one, two = claiming.worker("one"), claiming.worker("two", "claim_check", port=ports[1])
        gateway = claiming.gateway(ports[0])
        for worker in (one, two):
            owns(worker, 1)
        with Load(served.http_port, "/webhooks/orders", body=BODY, connections=8, per_second=100, most=HOOKS) as load:
            load.wait_accepted(HOOKS // 3)
            claiming.lose(one)
            load.wait_accepted(HOOKS)
        first = claiming.arrived(claiming.first, load.ids)
        # Every hook waits for its second sink. Whoever delivers it next has nothing but the changelog.
        one.start()
        owns(one, 2)
        claiming.lose(two)
        claiming.topic(claiming.later)
        later = claiming.arrived(claiming.later, load.ids)
        assert not any("body_base64" in message for message in (*first, *later))
        claims: dict[str, set[str]] = {}
        for message in (*first, *later):
            claims.setdefault(message["id"], set()).add(message["claim"])
        assert {len(found) for found in claims.values()} == {1}
        two.start()
        until(lambda: ask_health(ports[1]), "the worker's gateway listens again")
        for number, (claim,) in enumerate(claims.values()):
            assert redeemed(ports[number % 2], claim) == BODY
        until(claiming.fleet.everything_committed, "every outcome is folded")
        for process in (one, two, gateway):
            assert process.stop() == 0, process.output()
    stored = sum(1 for _ in claiming.packs.glob("*/*"))
    counts = len(load.ids), len(first) + len(later), len(claims), stored
    print("\n{} hooks in {} messages by {} references into {} packs".format(*counts))


def ask_health(port: int) -> bool:
    try:
        return ask(port, "GET", "/health")[0] == 200
    except OSError:
        return False


def test_an_old_pack_goes_unless_a_row_needs_it_and_an_empty_disk_knows_what_is_left(
    broker: str, tmp_path: Path
) -> None:
    """Packs of ten days ago, named by records: of a hook whose second sink is not there, and of one without a row."""
    claiming = Claiming(broker, tmp_path, partitions=1)
    claiming.topic(claiming.first)
    with claiming.edge() as served:
        hook_id = served.accepted("orders", {"large": "x" * 5000})
        seq = _seq(claiming.fleet, hook_id)
        nobodys = places.log_offset(0, 1 << 30) << 8  # a hook of which no row is left
        old = now_ms() - 10 * DAY_MS
        needed, unneeded = pack_id(old, 1), pack_id(old, 2)
        for bits, (pack, of) in enumerate(((needed, seq), (unneeded, nobodys))):
            _store(claiming.packs / "default" / pack)
            claiming.fleet.send(Topic.OUTCOMES, [(0, records.encode(CheckIn("default", pack, old + bits, (of,))))])
        worker = claiming.worker("one", retention_days=7)
        until(lambda: not (claiming.packs / "default" / unneeded).exists(), "the pack that no row needs goes", 180)
        assert (claiming.packs / "default" / needed).exists()
        until(lambda: worker.said("partition_owned") != [] and claiming.fleet.everything_committed(), "it is folded")
        claiming.lose(worker)
        worker.start()
        owns(worker, 2)
        claiming.topic(claiming.later)
        (message,) = claiming.arrived(claiming.later, [hook_id])
        assert worker.stop() == 0, worker.output()
    tables = worker.tables()[0]
    known = [decode_check_in(value).pack for value in tables["packs"].values()]
    assert known == [needed]
    assert message["claim"].split(":")[-1] == needed  # its first body, at position 0
    assert not tables["rows"]


def _seq(fleet: Fleet, hook_id: str) -> int:
    for record in fleet.read(fleet.names.hooks):
        for index, (envelope, _) in enumerate(decode_commit(record.value)[1]):
            if decode_envelope(envelope).id == hook_id:
                return seq_of(places.log_offset(record.partition, record.offset), index)
    raise AssertionError(f"{hook_id} is not in the log")


def _store(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(packs.head([len(BODY)]) + BODY)
