"""One replay over a fleet whose worker is killed in the middle of it: every dead row is moved exactly once.

`python -m tests.kafka.fleet_replay --dead 2000`: one broker, two edges, two workers. Hooks die at a sink that
refuses them for good; it is cured, one worker is told to replay them, and the other is killed with -9 while it does,
then started again. Prints what the job came to. Exit status 1 when `moved` is not the number of dead rows.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct

from ankusa.demo.ask import ask
from tests.kafka.fleet_stack import Size, Stack, running
from tests.kafka.folding import until

SIZE = Size(brokers=1, partitions=4)
ENDS_S = 180.0


class Replayed(Struct, frozen=True):
    """`moved` and `delivered` are the job's, summed over the workers; `arrived` is what the sink took of it."""

    dead: int
    moved: int
    delivered: int
    arrived: int
    duplicates: int
    moved_at_kill: int
    left: int

    @property
    def good(self) -> bool:
        exact = self.moved == self.delivered == self.arrived == self.dead and not self.left
        return exact and 0 < self.moved_at_kill < self.dead and self.duplicates <= SIZE.max_inflight

    def __str__(self) -> str:
        return (
            f"{self.dead} dead rows, a worker killed at {self.moved_at_kill} moved: {self.moved} moved, "
            f"{self.delivered} delivered by the job's count, {self.arrived} at the sink of which {self.duplicates} "
            f"twice, {self.left} left"
        )


def run(folder: Path, dead: int) -> Replayed:
    """Let so many hooks die, replay them through a kill, and count."""
    with running(folder, SIZE) as stack:
        stack.sink.behave(status=410)
        ids = stack.post_unlucky(dead)
        until(lambda: _dead(stack) == len(ids), "every row is dead", ENDS_S)
        stack.sink.behave()
        status, job = ask(stack.ports["one"], "POST", "/v1/replays", {"kind": "dlq", "rate": max(20, dead // 10)})
        assert status in (200, 201, 202), job
        until(lambda: _sum(stack, job, "moved") > dead // 4, "some are moved", ENDS_S)
        moved_at_kill = _sum(stack, job, "moved")
        stack.workers["two"].kill()
        owned = stack.owned("two")
        stack.workers["two"].start()
        stack.wait_owned("two", 1, owned)
        until(lambda: ids <= stack.sink.refresh().delivered.keys(), "all arrived", ENDS_S)
        until(lambda: all(_state(stack, job, name) == "done" for name in stack.workers), "the job is done", ENDS_S)
        until(stack.fleet.everything_committed, "every outcome is folded")
        return Replayed(
            dead=len(ids),
            moved=_sum(stack, job, "moved"),
            delivered=_sum(stack, job, "delivered"),
            arrived=len(stack.sink.refresh().delivered),
            duplicates=stack.sink.delivered.total() - len(stack.sink.delivered),
            moved_at_kill=moved_at_kill,
            left=_dead(stack),
        )


def _dead(stack: Stack) -> int:
    return sum(int(_asked(stack, name, "/v1/dlq").get("total", 0)) for name in stack.workers)


def _sum(stack: Stack, job: dict[str, Any], count: str) -> int:
    """Over the workers: each shows the parts of the partitions that it owns."""
    return sum(int(_asked(stack, name, f"/v1/replays/{job['id']}").get(count, 0)) for name in stack.workers)


def _state(stack: Stack, job: dict[str, Any], name: str) -> str:
    return str(_asked(stack, name, f"/v1/replays/{job['id']}").get("state", ""))


def _asked(stack: Stack, name: str, path: str) -> dict[str, Any]:
    """A worker's answer; nothing from one that is down, or that owns no part."""
    try:
        status, answer = ask(stack.ports[name], "GET", path)
    except OSError:
        return {}
    return answer if status == 200 else {}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="A replay over a fleet whose worker is killed in the middle of it.")
    parser.add_argument("--dead", type=int, default=2000)
    given = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="ankusa-fleet-") as folder:
        found = run(Path(folder), given.dead)
    print(f"{found}: {'good' if found.good else 'NOT GOOD'}")
    return 0 if found.good else 1


if __name__ == "__main__":
    sys.exit(main())
