"""Poison on every topic that a worker reads: it is set aside, counted and named, and what comes after it is served.

One worker for all of it, as a whole process that delivers; `dead` is in `test_trimming.py`, the changelog, which alone
must refuse, in `test_fold_worker.py` and `tests/unit/kafka/test_restoring.py`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from http.client import HTTPConnection
from typing import NamedTuple

import msgspec
import pytest

from ankusa.logs import BURST
from schemas import records
from schemas.records import (
    Breaker,
    BreakerMove,
    LimitChange,
    Outcome,
    OutcomeBatch,
    OutcomeKind,
    SourceChange,
    Topic,
)
from tests.kafka.delivering import Admin, arrived, delivering_fleet, edge, ending, owns, worker
from tests.kafka.folding import Fleet, WorkerProcess, until
from tests.kafka.nodes import Served
from tests.support.marked_sink import SinkProcess
from tests.support.node_process import free_port
from tests.unit.kafka.records import holds, hooks, job_start
from tests.unit.store.entries import AT, hook

SOURCES = "/v1/tenants/acme/sources"
LIMIT = "/v1/tenants/acme/rate-limit"


class Running(NamedTuple):
    fleet: Fleet
    sink: SinkProcess
    worker: WorkerProcess
    admin: Admin
    edge: Served

    def set_aside(self) -> int:
        """As the worker's metrics have it."""
        connection = HTTPConnection("127.0.0.1", self.admin.port, timeout=30)
        connection.request("GET", "/metrics")
        text = connection.getresponse().read().decode()
        connection.close()
        (line,) = (line for line in text.splitlines() if line.startswith("ankusa_set_aside_records "))
        return int(float(line.rpartition(" ")[2]))

    def named(self, topic: str) -> int:
        return sum(f" topic={topic} " in line for line in self.worker.said("record_set_aside"))


@pytest.fixture(scope="module")
def running(broker: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    folder = tmp_path_factory.mktemp("poison")
    fleet = delivering_fleet(broker, partitions=1)
    with SinkProcess(folder) as sink, edge(fleet, folder / "edge") as served:
        port = free_port()
        process = worker(fleet, folder / "worker", sink.url, port)
        with ending([process]):
            owns(process, 1)
            yield Running(fleet, sink, process, Admin(port), served)
            assert process.stop() == 0, process.output()


OUTCOMES = records.encode(OutcomeBatch((Outcome(1, 0, 0, OutcomeKind.DEAD, AT, AT, 1, error="gone away"),)))
GOOD = {
    Topic.HOOKS: hooks("unused-1"),
    Topic.OUTCOMES: OUTCOMES,
    Topic.REPLAYS: job_start("unused-2"),
    Topic.QUARANTINE: holds("unused-3")[0],
    Topic.LIMITS: records.encode(LimitChange("acme", AT, 5.0, 5)),
    Topic.SOURCES: records.encode(SourceChange("acme.bills", "acme", "bills", AT, AT, b"{}")),
}
NOISE = hashlib.shake_256(b"7").digest(2000)


def common(topic: Topic) -> list[bytes | None]:
    """What is no record of any topic, and the records of all others."""
    good = GOOD[topic]
    poison: list[bytes | None] = [b"", b"\xc1", NOISE[:100], NOISE]
    poison += [good[:-1], good[: len(good) // 2]]
    poison += [b"\x02" + good[1:], records.encode(["nonsense", 7]), b"\x93" * 3000]
    return poison + [value for other, value in GOOD.items() if other is not topic]


def with_hook(envelope: bytes, name: str) -> bytes:
    """A commit of one hook that cannot be read and one that can."""
    return records.encode_commit(AT, [(envelope, b"{}"), (hook(name)[1], b"{}")])


def changed(**changes: object) -> bytes:
    return records.encode(msgspec.structs.replace(hook("odd")[0], **changes))


ODD_HOOKS = [
    hook("odd")[1].replace(b"acme", b"a\xff\xfee"),
    changed(tenant_id="a/b"),
    changed(tenant_id="a\0b"),
    changed(source_id="a/b"),
    changed(ordering_keys=("k", "k")),
]


def send(running: Running, topic: Topic, *values: bytes | None) -> None:
    running.fleet.send(topic, ((0, value) for value in values))


def poisoned(running: Running, topic: Topic, *poison: bytes | None) -> Callable[[], None]:
    """Send `poison`. The answer waits until each is counted and named."""
    before, named = running.set_aside(), running.named(topic.name.lower())
    send(running, topic, *poison)

    def counted() -> None:
        until(lambda: running.set_aside() >= before + len(poison), "all poison is counted", 30)
        assert running.set_aside() == before + len(poison)
        # A hook that is left out of its commit is in the store alone.
        assert running.named(topic.name.lower()) >= named

    return counted


def test_hooks(running: Running) -> None:
    poison = [*common(Topic.HOOKS), None, *(with_hook(odd, f"beside-{n}") for n, odd in enumerate(ODD_HOOKS))]
    counted = poisoned(running, Topic.HOOKS, *poison)
    send(running, Topic.HOOKS, hooks("after-hooks"))
    arrived(running.sink, {"after-hooks", *(f"beside-{number}" for number in range(len(ODD_HOOKS)))})
    counted()
    assert running.admin.get("/v1/stats")["rows"]["dead"] == 0


def test_outcomes(running: Running) -> None:
    raises = records.encode(OutcomeBatch((Outcome(-1, 0, 0, OutcomeKind.DEAD, AT, AT, 1),)))
    breaker = records.encode(OutcomeBatch((), (BreakerMove("nobody's", Breaker(failures=3, at=AT)),)))
    not_utf8 = OUTCOMES.replace(b"gone", b"\xff\xfe\xff\xfe")
    poison = [*common(Topic.OUTCOMES), None, raises, breaker, not_utf8]
    counted = poisoned(running, Topic.OUTCOMES, *poison)
    counted()
    send(running, Topic.HOOKS, hooks("after-outcomes"))
    arrived(running.sink, {"after-outcomes"})  # which takes outcomes that are folded
    until(lambda: running.admin.get("/v1/stats")["rows"]["pending"] == 0, "it is settled")


def test_quarantine(running: Running) -> None:
    held = holds("odd")[1][0]
    odd = records.encode(held).replace(b"acme", b"a\xff\xfee")
    beside = records.encode_commit(AT, [(odd, b"{}"), (records.encode(holds("held-beside")[1][0]), b"{}")])
    counted = poisoned(running, Topic.QUARANTINE, *common(Topic.QUARANTINE), None, beside)
    send(running, Topic.QUARANTINE, holds("held-after")[0])
    until(lambda: _held(running) == {"held-beside", "held-after"}, "what is good is held")
    counted()


def _held(running: Running) -> set[str]:
    return {entry["id"] for entry in running.admin.get("/v1/quarantine")["entries"]}


def test_replays(running: Running) -> None:
    not_utf8 = job_start("odd").replace(b"odd", b"\xff\xfed")
    counted = poisoned(
        running, Topic.REPLAYS, *common(Topic.REPLAYS), not_utf8, job_start("slow", rate=0), job_start("", rate=1)
    )
    send(
        running,
        Topic.REPLAYS,
        None,
        job_start("strange", kind="nobody's"),
        job_start("odd-filter", filter={"x": [1]}),
        job_start("good"),
    )
    until(lambda: _jobs(running).get("good") == "done", "a good job is run")
    counted()
    until(lambda: _jobs(running)["strange"] == "failed", "one of a kind that nobody runs has failed")


def _jobs(running: Running) -> dict[str, str]:
    return {made["id"]: made["state"] for made in running.admin.get("/v1/replays")["replays"]}


def test_sources(running: Running) -> None:
    """With keys: of a source that is there, of none, of limits, of questions, and no text at all."""
    made = running.admin.post(SOURCES, {"name": "bills", "verify": {"type": "none"}, "sinks": [_sink(running)]})
    until(lambda: running.edge.post("acme.bills")[0] == 201, "the edge takes it")
    damaged = [value for value in common(Topic.SOURCES) if value != GOOD[Topic.LIMITS]]
    zero = records.encode(LimitChange("acme", AT, 0.0, 1))
    entries = [
        *((b"acme.bills", value) for value in damaged),
        *((b"limit/acme", value) for value in (b"", b"\xc1", GOOD[Topic.OUTCOMES], zero)),
        *((b"ask/1", value) for value in (b"", b"\xc1", records.encode(["2", "acme.bills", False, AT]))),
        *((b"told/1/x", value) for value in (b"\xc1", records.encode([1, 1, 1, AT]))),
        (b"told/1", records.encode([1, 1, 1, AT])),
        *((b"pen/0", value) for value in (b"\xc1", records.encode(-1), GOOD[Topic.LIMITS])),
        (b"pen/9", records.encode(1 << 60)),
        (b"\xff\xfe", GOOD[Topic.SOURCES]),
        (b"nobody's", GOOD[Topic.SOURCES]),
        (b"acme.others", GOOD[Topic.SOURCES]),
    ]
    before = running.set_aside()
    for key, value in entries:
        running.fleet.producer.produce(running.fleet.names.sources, value, key, 0)
    assert running.fleet.producer.flush(30) == 0
    until(lambda: running.set_aside() >= before + len(entries), "all poison is counted", 30)
    assert running.set_aside() == before + len(entries)
    # The log has so many of a kind in a window, whoever writes more.
    questions = [key for key, _ in entries if key.startswith((b"ask/", b"told/"))]
    named = min(BURST, len(entries) - len(questions))
    until(lambda: running.named(running.fleet.names.sources) == named, "they are named", 30)
    assert len(running.worker.said("question_ignored")) == len(questions)
    # What was there holds, what comes is taken, by the worker and by the edge.
    arrived(running.sink, {running.edge.accepted("acme.bills")})
    assert running.admin.get(f"{SOURCES}/bills")["updated_at"] == made["updated_at"]
    running.admin.post(SOURCES, {"name": "others", "verify": {"type": "none"}, "sinks": [_sink(running)]})
    until(lambda: running.edge.post("acme.others")[0] == 201, "the edge takes another")
    assert "topic=" + running.fleet.names.sources in running.edge.log()
    # A worker that begins reads all of it again: the damaged source stays as it was before.
    assert running.worker.stop() == 0, running.worker.output()
    running.worker.start()
    owns(running.worker, 2)
    arrived(running.sink, {running.edge.accepted("acme.bills")})


def _sink(running: Running) -> dict[str, str]:
    return {"type": "http", "url": running.sink.url}
