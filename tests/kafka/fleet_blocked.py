"""A sink that holds attempts for ten minutes, beside one that does not: the group must not notice.

`python -m tests.kafka.fleet_blocked --blocked-s 600`: one broker, two edges, two workers. Hooks of the source
`unlucky` are taken only after that time; those of the other go on being delivered meanwhile. Counts rebalances
(takeovers of partitions), deliveries that came twice, and the longest silence. Exit status 1 unless there were none.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

from msgspec import Struct

from ankusa.clock import now_ms
from tests.kafka.fleet_book import read_book
from tests.kafka.fleet_stack import Size, Stack, running
from tests.kafka.folding import until

BLOCKED = 8
"""Half of what a worker runs at once: the others need slots too."""

PER_SECOND = 20.0
SLACK_S = 120.0


class Blocked(Struct, frozen=True):
    """What was seen while the sink held its hooks. `takeovers` beyond those at the start; times in seconds."""

    blocked: int
    held_s: float
    accepted: int
    delivered: int
    duplicates: int
    lost: int
    takeovers: int
    silence_s: float

    @property
    def good(self) -> bool:
        return not (self.duplicates or self.lost or self.takeovers)

    def __str__(self) -> str:
        return (
            f"{self.blocked} hooks held for {self.held_s:.0f} s: {self.takeovers} takeovers, {self.duplicates} "
            f"delivered twice, {self.lost} lost; {self.delivered} of {self.accepted} others delivered meanwhile, "
            f"longest silence {self.silence_s:.1f} s"
        )


def run(folder: Path, blocked_s: float) -> Blocked:
    """Have the sink hold hooks for `blocked_s`, and count."""
    size = Size(brokers=1, partitions=4, per_second=PER_SECOND, attempt_timeout_ms=round((blocked_s + SLACK_S) * 1000))
    with running(folder, size) as stack:
        before = _takeovers(stack)
        stack.sink.behave(delay_ms=round(blocked_s * 1000))
        began = now_ms()
        blocked = stack.post_unlucky(BLOCKED)
        with stack.loads() as loads:
            until(lambda: blocked <= stack.sink.refresh().delivered.keys(), "it took them", blocked_s + SLACK_S)
            held_s = (now_ms() - began) / 1000
            meanwhile = len(stack.sink.delivered) - len(blocked)
        others = set().union(*(load.ids for load in loads))
        until(lambda: others <= stack.sink.refresh().delivered.keys(), "all others arrived")
        until(stack.fleet.everything_committed, "every outcome is folded")
        asked = [request for request in stack.sink.refresh().asked if request.id in others]
        times = [began, *sorted(request.at for request in asked)]
        return Blocked(
            blocked=len(blocked),
            held_s=held_s,
            accepted=len(others),
            delivered=meanwhile,
            duplicates=stack.sink.delivered.total() - len(stack.sink.delivered),
            lost=len((others | blocked) - stack.sink.delivered.keys()),
            takeovers=_takeovers(stack) - before,
            silence_s=max(after - at for at, after in pairwise(times)) / 1000,
        )


def _takeovers(stack: Stack) -> int:
    return sum(map(len, read_book(stack.fleet).changes.values()))


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="A sink that holds attempts while the group goes on.")
    parser.add_argument("--blocked-s", type=float, default=600.0)
    given = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="ankusa-fleet-") as folder:
        found = run(Path(folder), given.blocked_s)
    print(f"{found}: {'good' if found.good else 'NOT GOOD'}")
    return 0 if found.good else 1


if __name__ == "__main__":
    sys.exit(main())
