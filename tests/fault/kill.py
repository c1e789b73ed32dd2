"""kill -9 of a whole node at full load, again and again, and the count of what was lost and doubled.

`python -m tests.fault.kill --rounds 20`; exit status 1 when a hook that got a 201 was not delivered, when one that was
refused was, or when more were doubled than had been claimed.
"""

from __future__ import annotations

import argparse
import hashlib
import hmac
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from msgspec import Struct

from tests.support.load import Load
from tests.support.marked_sink import SinkProcess
from tests.support.node import Node
from tests.support.tally import Tally, settle

MAX_INFLIGHT = 512
"""What a node claims at once here, and with that the most that a kill may double."""

SECRET = "a secret of the fault tests"
BODY = json.dumps({"id": "evt_1", "type": "charge.succeeded", "data": "x" * 960}).encode()


def signature(body: bytes) -> str:
    """As GitHub signs."""
    return f"sha256={hmac.new(SECRET.encode(), body, hashlib.sha256).hexdigest()}"


SIGNED = {"content-type": "application/json", "x-hub-signature-256": signature(BODY)}


class Report(Struct, frozen=True):
    """`restarts_s`: from the kill to a node that is ready, each."""

    rounds: int
    tally: Tally
    restarts_s: list[float]

    @property
    def duplicates_allowed(self) -> int:
        return self.rounds * MAX_INFLIGHT

    @property
    def good(self) -> bool:
        tally = self.tally
        return not tally.lost and not tally.refused_delivered and tally.duplicates <= self.duplicates_allowed

    def __str__(self) -> str:
        return (
            f"{self.rounds} kills: {self.tally} (at most {self.duplicates_allowed} duplicates allowed); "
            f"ready again after {min(self.restarts_s):.1f} to {max(self.restarts_s):.1f} s"
        )


def config(sink: SinkProcess) -> dict[str, Any]:
    """A node with one signed source. No breakers: a sink that is only busy must not be parked in these tests."""
    return {
        "dispatch": {
            "breaker_failures": 0,
            "concurrency": 64,
            "sink_concurrency": 64,
            "max_inflight": MAX_INFLIGHT,
        },
        "sources": {
            "hooks": {
                "verify": {"type": "github", "secret": SECRET},
                "sinks": [{"type": "http", "url": sink.url}],
            }
        },
    }


def full_load(node: Node, **options: Any) -> Load:
    """As much as the node takes of signed hooks of one kilobyte."""
    return Load(node.http_port, "/webhooks/hooks", body=BODY, headers=SIGNED, **options)


def run(folder: Path, rounds: int, seconds: float = 1.0) -> Report:
    """The load goes on all the while; each round kills the node once it has accepted hooks for `seconds`."""
    restarts_s = []
    with SinkProcess(folder) as sink, Node(folder, config(sink)) as node:
        sink.behave(delay_ms=10)  # so that there is always something claimed
        with full_load(node) as load:
            for _ in range(rounds):
                load.wait_accepted(50)
                time.sleep(seconds)
                began = time.monotonic()
                node.kill()
                node.start()
                restarts_s.append(time.monotonic() - began)
        sink.behave()
        return Report(rounds, settle([load], sink), restarts_s)


def main() -> int:
    parser = argparse.ArgumentParser(description="Kill a node at full load, again and again, and count.")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=2.0, help="of load before each kill")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="ankusa-kill-", dir=Path.cwd()) as folder:
        report = run(Path(folder), arguments.rounds, arguments.seconds)
    print(report)
    return 0 if report.good else 1


if __name__ == "__main__":
    sys.exit(main())
