"""Fleets that deliver: workers as processes to kill, and an edge that takes a load, on a real broker."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ankusa.demo.ask import ask
from schemas.config import Sink, Source, Verify
from tests.kafka.folding import DEADLINE_S, Fleet, WorkerProcess, until
from tests.kafka.nodes import Served, serving
from tests.support.marked_sink import SinkProcess

MODULE = "streams.kafka.worker_process"


def delivering_fleet(broker: str, partitions: int = 4) -> Fleet:
    """Topics, and an edge's source `orders`; what its sink is, workers say."""
    sink = Sink(type="http", options={"url": "http://192.0.2.1/nobody"})
    source = Source(name="orders", verify=Verify(type="none"), sinks=(sink,))
    return Fleet(broker, partitions=partitions, sources={"orders": source})


def worker(
    fleet: Fleet, folder: Path, url: str, admin_port: int | None = None, module: str = MODULE, **dispatch: Any
) -> WorkerProcess:
    """A worker, run by `module`, that delivers the source `orders` to `url`."""
    sections: dict[str, Mapping[str, Any]] = {
        "sources": {
            "orders": {
                "verify": {"type": "none"},
                "sinks": [{"type": "http", "url": url, "timeout_ms": 60_000}],
                "retry": {"base_ms": 200, "max_ms": 1000},
            }
        },
        "egress": {"allow": ["127.0.0.0/8"]},
        "dispatch": {"breaker_failures": 0, **dispatch},
        "admin": {"enabled": admin_port is not None, "port": admin_port or 0},
        "source_store": {"type": "persistent"},
    }
    return WorkerProcess(fleet, folder, module, **sections)


def owns(process: WorkerProcess, count: int) -> None:
    """Wait until a worker has been given so many partitions in all its lives."""

    def given() -> bool:
        assert process.process.poll() is None, process.output()
        return len(process.said("partition_owned")) >= count

    until(given, f"it owns {count} partitions")


@contextmanager
def edge(fleet: Fleet, folder: Path) -> Iterator[Served]:
    """An edge process that accepts, for sources of its file and of the API."""
    sections = {"egress": {"allow": ["192.0.2.0/24"]}, "source_store": {"type": "persistent"}}
    with serving(folder, fleet.config, **sections) as served:
        yield served


@contextmanager
def ending(processes: Iterable[WorkerProcess]) -> Iterator[None]:
    """End what still runs, however the test ends. `processes` is read at the end."""
    try:
        yield
    finally:
        for process in processes:
            if process.process.poll() is None:
                process.kill()


def arrived(sink: SinkProcess, ids: set[str], within_s: float = DEADLINE_S) -> None:
    """Wait until every one of `ids` has arrived."""
    until(lambda: ids <= sink.refresh().by_id.keys(), f"{len(ids)} hooks arrived", within_s)


class Admin:
    """The admin API of a worker."""

    def __init__(self, port: int) -> None:
        self.port = port

    def get(self, path: str) -> dict[str, Any]:
        status, answer = ask(self.port, "GET", path)
        assert status == 200, answer
        return answer

    def post(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        status, answer = ask(self.port, "POST", path, dict(body))
        assert status in (200, 201, 202), answer
        return answer

    def status(self, method: str, path: str) -> int:
        return ask(self.port, method, path)[0]
