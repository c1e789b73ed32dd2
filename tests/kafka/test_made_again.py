"""Topics that are deleted and made again under a fleet that has folded them, on a real broker: it is said, and ends."""

from __future__ import annotations

from pathlib import Path

import pytest

from schemas.records import Topic
from tests.kafka.folding import Fleet, WorkerProcess, until
from tests.unit.kafka.records import hooks, job_start


def send(fleet: Fleet, *names: str) -> None:
    fleet.send(Topic.HOOKS, [(0, hooks(name)) for name in names])


@pytest.mark.parametrize("count", [2, 8], ids=["ends before its tables", "has grown past its tables"])
def test_hooks_made_again_under_a_worker_end_it(broker: str, tmp_path: Path, count: int) -> None:
    """However far they go by the time that somebody looks; and so they do whoever takes over, on any disk."""
    fleet = Fleet(broker, partitions=1)
    send(fleet, *(f"old-{number}" for number in range(5)))
    worker = WorkerProcess(fleet, tmp_path / "worker")
    until(fleet.everything_committed, "five are folded")
    fleet.make_again(fleet.names.hooks)
    send(fleet, *(f"new-{number}" for number in range(count)))
    assert "hooks was made again" in worker.failed()
    ids = worker.tables()[0]["ids"]
    assert {b"old-%d" % number for number in range(5)} <= set(ids)
    assert not {b"new-%d" % number for number in range(5)} & set(ids)
    reason = "hooks ends at offset 2" if count == 2 else "hooks was made again"
    worker.start()
    assert reason in worker.failed(2)
    without_disk = WorkerProcess(fleet, tmp_path / "other")
    assert reason in without_disk.failed()


def test_replays_made_again_under_a_worker_end_it(broker: str, tmp_path: Path) -> None:
    """Compacted, and its offsets begin anew all the same: a command would be taken for one that is folded, and the
    operator told that it is."""
    fleet = Fleet(broker, partitions=1)
    fleet.send(Topic.REPLAYS, [(0, job_start(f"old-{number}")) for number in range(5)])
    worker = WorkerProcess(fleet, tmp_path / "worker")
    until(fleet.everything_committed, "five are folded")
    fleet.make_again(fleet.names.replays)
    fleet.send(Topic.REPLAYS, [(0, job_start("new"))])
    assert "replays was made again" in worker.failed()
    assert b"new" not in worker.tables()[0]["jobs"]
    worker.start()
    assert "replays ends at offset 1, and its tables hold what it had up to 4" in worker.failed(2)
