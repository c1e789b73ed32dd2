"""A disk that takes no more, under a running node: 503 and the reason, and recovery without a hand.

Four real ways: less free than the reserve, not a byte free, a data directory that became read-only, and a kernel that
refuses every write of the node's processes. Where the machine lets nothing be mounted, the last stands in for all.
"""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
from msgspec import Struct

from streams.local.health import RESERVE_BYTES
from tests.fault import kill
from tests.support.disks import NoMountError, SmallDisk, limited
from tests.support.load import Load
from tests.support.marked_sink import SinkProcess
from tests.support.node import Node, ask
from tests.support.node_process import poll
from tests.support.tally import settle

pytestmark = pytest.mark.fault

DISK_BYTES = RESERVE_BYTES + (192 << 20)
REFUSES_WITHIN_S = 30.0
RECOVERS_WITHIN_S = 120.0
TRIES = 10
CONNECTIONS = 32
"""Each sends one hook at a time: no more can be under way."""


LARGE = b"x" * (64 << 10)
"""A body of which a few hundred fill what RocksDB has of its log allocated beforehand."""


class Place(Struct):
    """Where a node's data is, and how to take its disk away: a context in which nothing durable can be written."""

    node: Node
    full: Callable[[], AbstractContextManager[None]]
    words: str
    """What the reason must say, as a pattern."""
    disk: SmallDisk | None = None

    def load(self) -> Load:
        return kill.full_load(self.node)


@contextlib.contextmanager
def place(folder: Path, sink: SinkProcess, way: str) -> Iterator[Place]:
    """A running node whose disk can be taken away in `way`."""
    data = folder / "disk"
    with contextlib.ExitStack() as stack:
        try:
            disk = stack.enter_context(SmallDisk(data, DISK_BYTES)) if way != "limited" else None
        except NoMountError as error:
            print(f"{error}: the kernel's file size limit stands in for {way}")
            disk = None
        command = disk.command if disk else ()
        node = stack.enter_context(Node(folder, kill.config(sink), data_dir=str(data / "data"), command=command))
        if disk is None:
            yield Place(node, lambda: limited(node.pids()), "File too large")
        elif way == "read_only":
            yield Place(node, disk.read_only, "Read-only file system", disk)
        elif way == "reserve":
            yield Place(node, lambda: disk.filled(RESERVE_BYTES // 2), "disk full: .* kept in reserve", disk)
        else:
            yield Place(node, lambda: full_after_probe(disk), "disk full|No space left", disk)


@contextlib.contextmanager
def full_after_probe(disk: SmallDisk) -> Iterator[None]:
    """Not a byte free from just after the node has looked at its disk, a second before it does so again."""
    wait_probe(disk.outside / "data")
    with disk.filled(0):
        yield


def refusal(node: Node) -> tuple[str, str] | None:
    """The reasons that edge and admin give for not being ready; None while one of them is."""
    edge, admin = ask(node.http_port, "GET", "/ready"), node.admin("GET", "/ready")
    if edge.status != 503 or admin.status != 503:
        return None
    assert int(edge.headers["retry-after"]) >= 1
    return edge.json["store"], admin.json["reasons"]["store"]


def check_refuses(found: Place) -> None:
    """The edge answers 503, and `/ready` of both listeners says why."""
    poll("a node that is not ready", lambda: refusal(found.node), REFUSES_WITHIN_S)
    reasons = refusal(found.node)
    assert reasons is not None
    assert all(re.search(found.words, reason) for reason in reasons), reasons
    answer = found.node.post("hooks", kill.BODY, kill.SIGNED)
    assert (answer.status, answer.json["error"]) == (503, "store_unavailable")
    assert int(answer.headers["retry-after"]) >= 1
    assert ask(found.node.http_port, "GET", "/health").status == 200


def wait_recovered(load: Load) -> float:
    """Seconds until the load is answered 201 again."""
    began = time.monotonic()
    load.wait_accepted(1, RECOVERS_WITHIN_S)
    return time.monotonic() - began


def check(load: Load, sink: SinkProcess, words: str = "", refused_delivered: int = 0) -> None:
    """Nothing that was accepted is lost, nothing that was refused is delivered, but for so many."""
    tally = settle([load], sink)
    print(f"{words}{tally}")
    assert tally.refused > 0
    assert tally.lost == 0, tally
    assert tally.refused_delivered <= refused_delivered, tally
    assert tally.duplicates <= kill.MAX_INFLIGHT, tally


@pytest.mark.parametrize("way", ["read_only", "limited"])
def test_a_disk_that_takes_no_write_costs_no_hook(tmp_path: Path, way: str) -> None:
    with SinkProcess(tmp_path) as sink, place(tmp_path, sink, way) as found:
        engines = found.node.pids("engine_process")
        with found.load() as load:
            load.wait_accepted(200)
            with found.full():
                check_refuses(found)
            recovered_s = wait_recovered(load)
            load.wait_accepted(50)
        check(load, sink, f"hooks taken again {recovered_s:.1f} s after the cause went: ")
        assert found.node.pids("engine_process") == engines  # by itself, and not by starting again


def test_what_is_stored_is_delivered_while_the_disk_is_in_its_reserve(tmp_path: Path) -> None:
    with SinkProcess(tmp_path) as sink, place(tmp_path, sink, "reserve") as found:
        sink.behave(status=500)
        with found.load() as load:
            load.wait_accepted(500)
            with found.full():
                check_refuses(found)
                accepted = load.ids
                sink.behave()
                if found.disk is not None:
                    poll("the delivery of every stored hook", lambda: accepted <= sink.refresh().by_id.keys())
                    poll("no row left", lambda: found.node.get("/v1/stats")["rows"]["pending"] == 0)
                    assert refusal(found.node) is not None  # all the while
            recovered_s = wait_recovered(load)
        check(load, sink, f"hooks taken again {recovered_s:.1f} s after room came: ")


@pytest.mark.parametrize("engine", ["lives", "dies"])
def test_a_store_that_runs_into_the_end_of_its_disk_recovers(tmp_path: Path, engine: str) -> None:
    """The competing file takes the last block between two looks at the free space, and RocksDB itself is refused.
    An engine that dies then cannot even open its store, until there is room."""
    with SinkProcess(tmp_path) as sink, place(tmp_path, sink, "full") as found:
        engines = found.node.pids("engine_process")
        headers = {"x-hub-signature-256": kill.signature(LARGE)}
        url = "/webhooks/hooks"
        with Load(found.node.http_port, url, body=LARGE, headers=headers, connections=CONNECTIONS) as load:
            load.wait_accepted(50)
            for _ in range(TRIES):
                with found.full():
                    load.wait_refused(1)
                    reasons = poll("a node that is not ready", lambda: refusal(found.node), REFUSES_WITHIN_S)
                    if re.search("No space left|File too large", reasons[0]):
                        if engine == "dies":
                            found.node.kill_one("engine_process")
                        poll("503", lambda: found.node.post("hooks", kill.BODY, kill.SIGNED).status == 503)
                        assert ask(found.node.http_port, "GET", "/ready").status == 503
                        break
                load.wait_accepted(1, RECOVERS_WITHIN_S)
            else:
                raise AssertionError(f"the free space was looked at before RocksDB wrote, {TRIES} times")
            recovered_s = wait_recovered(load)
        # What was under way when the disk first refused could be taken back by the engine that died alone.
        unknown = 0 if engine == "lives" else CONNECTIONS
        check(load, sink, f"{reasons[0]}; hooks taken again {recovered_s:.1f} s after room came: ", unknown)
        assert (found.node.pids("engine_process") == engines) is (engine == "lives")


def wait_probe(data_dir: Path) -> None:
    """Wait until the node has just looked at its disk, which makes and removes a file there."""
    before = data_dir.stat().st_mtime_ns
    poll("a probe", lambda: data_dir.stat().st_mtime_ns != before)
