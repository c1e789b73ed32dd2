"""Five dead sinks with open breakers through kill -9 of their node: what it knows then, and what it asks of them.

`python -m tests.fault.breakers` is the full size: breakers as they are by default, open for 30 s and then 60. Killed
twice: while the five are open, and while the five probes hang. Exit status 1 when a breaker was forgotten, a dead sink
got anything but one probe at its time, a parked row lost an attempt, or not all was delivered once the sinks were back.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import tempfile
import time
from collections import Counter
from operator import itemgetter
from pathlib import Path
from typing import Any

from ankusa import clock
from tests.fault.breaker_report import SINKS, Report, Size, Stage
from tests.support.http_sink import Behaviour, Received, SinkServer
from tests.support.load import Load
from tests.support.node import Node
from tests.support.node_process import poll
from tests.support.stillness import Stillness

PROBE_ANSWER_MS = 300
"""How long a sink that is back takes for its probe: whatever else came meanwhile would be a stampede."""

LONG_S = 180
"""Longer than the second opening of a breaker as it is by default, a minute."""


FULL = Size(hooks=200, open_ms=30_000, max_open_ms=300_000)


class DeadSink(SinkServer):
    """A sink that is down until it is told otherwise. `asked`: `(unix ms, hook id)` of each request, in order."""

    def __init__(self) -> None:
        super().__init__(keep=False)
        self.asked: list[tuple[int, str]] = []
        self.behave(status=500)

    def next_behaviour(self, request: Received) -> Behaviour:
        self.asked.append((clock.now_ms(), request.header("x-ankusa-id") or ""))
        return super().next_behaviour(request)


class Five:
    """A node and its dead sinks, each at a source of its own, and what both say of what was asked."""

    def __init__(self, node: Node, sinks: list[DeadSink]) -> None:
        self.node, self.sinks = node, sinks
        self.ids: list[str] = []
        self.unrecorded: Counter[str] = Counter()
        self.restarts_s: list[float] = []

    def post(self, hooks: int) -> None:
        for number in range(SINKS):
            with Load(self.node.http_port, f"/webhooks/s{number}", connections=8, most=hooks) as load:
                load.wait_accepted(hooks)
            self.ids += load.ids

    def kill(self) -> None:
        began = time.monotonic()
        self.node.kill()
        self.node.start()
        self.restarts_s.append(time.monotonic() - began)

    def counts(self) -> list[int]:
        """Requests at each sink so far."""
        return [len(sink.asked) for sink in self.sinks]

    def breakers(self, name: str) -> list[Any]:
        """A field of each sink key, in the sinks' order."""
        return [key[name] for key in sorted(self.node.get("/v1/stats")["sinks"], key=itemgetter("source_id"))]

    def rows(self, state: str) -> int:
        return int(self.node.get("/v1/stats")["rows"][state])

    def open_breakers(self) -> int:
        """As the metrics count them."""
        lines = self.node.admin("GET", "/metrics").body.decode().splitlines()
        return next(int(float(line.split()[1])) for line in lines if line.startswith("ankusa_open_breakers "))

    def wait_open(self, within_s: float = 60) -> list[int]:
        """Wait until all five are open and nothing is claimed; until when they are."""
        poll(
            "open breakers", lambda: self.breakers("breaker") == ["open"] * SINKS and not self.rows("claimed"), within_s
        )
        return self.breakers("breaker_until")

    def hang(self) -> None:
        """Let the sinks answer nobody from now on."""
        for sink in self.sinks:
            sink.behave(mode="hang")

    def give_up_probes(self, asked: list[int]) -> None:
        """Kill the node while what it asked since `asked` hangs, and is in no record; then the sinks fail again."""
        self.node.kill()
        self.unrecorded.update(hook_id for _, hook_id in self._asked_since(asked))
        for sink in self.sinks:
            sink.behave(status=500)
        self.node.start()

    def _asked_since(self, counts: list[int]) -> list[tuple[int, str]]:
        return [each for sink, count in zip(self.sinks, counts, strict=True) for each in sink.asked[count:]]

    def changed(self, answered: list[int] | None = None) -> int:
        """Hooks whose attempts are not the requests that their sink has answered, and do not come to be. Where the
        later ones hang, `answered` says how many of each sink's requests those are."""
        try:
            poll("attempts as the sinks count them", lambda: not self._unlike(answered), 30)
        except AssertionError:
            return len(self._unlike(answered))
        return 0

    def _unlike(self, answered: list[int] | None) -> list[str]:
        asked = Counter(hook_id for sink in self.sinks for _, hook_id in sink.asked) - self.unrecorded
        if answered is not None:
            asked -= Counter(hook_id for _, hook_id in self._asked_since(answered))
        hooks = self.node.hooks(self.ids)
        return [hook_id for hook_id in self.ids if _attempts(hooks[hook_id]) != asked[hook_id]]

    def stage(self, name: str, before: list[int], until: list[int], within_ms: int | None = None) -> Stage:
        """What was asked since `before`; with `within_ms`, in so long from the first of it."""
        since = [[at for at, _ in sink.asked[count:]] for sink, count in zip(self.sinks, before, strict=True)]
        requests = [sum(within_ms is None or at < times[0] + within_ms for at in times) for times in since]
        return Stage(name, requests, [times[0] - moment for times, moment in zip(since, until, strict=True)])


def _attempts(hook: dict[str, Any]) -> int:
    rows = hook["rows"]
    return int(rows[0]["attempts"] if rows else hook["attempts"][-1]["attempt"])


def config(sinks: list[DeadSink], size: Size) -> dict[str, Any]:
    """All as it is by default but for the breakers' times, and timeouts that no pause of the machine reaches."""
    return {
        "dispatch": {
            "breaker_open_ms": size.open_ms,
            "breaker_max_open_ms": size.max_open_ms,
            "attempt_timeout_ms": 120_000,
        },
        "sources": {
            f"s{number}": {
                "verify": {"type": "none"},
                "sinks": [{"type": "http", "url": sink.url, "timeout_ms": 60_000}],
            }
            for number, sink in enumerate(sinks)
        },
    }


def run(folder: Path, size: Size) -> Report:
    """Let five sinks fail, kill the node while they are left alone, kill it while it probes, and bring them back."""
    began = time.monotonic()
    with contextlib.ExitStack() as stack:
        stillness = stack.enter_context(Stillness())
        sinks = [stack.enter_context(DeadSink()) for _ in range(SINKS)]
        five = Five(stack.enter_context(Node(folder, config(sinks, size))), sinks)
        five.post(size.hooks)
        until = five.wait_open()
        opening = asked = five.counts()
        five.hang()  # nobody asks them now, and whenever the breakers' time comes the probes hang
        changed = five.changed(asked)

        five.kill()
        # Too slow a machine: again, with breakers that are open for twice as long, which the size must leave room for.
        while clock.now_ms() >= min(until):
            five.give_up_probes(asked)
            until = five.wait_open()
            asked = five.counts()
            five.hang()
            five.kill()
        forgotten = SINKS - five.open_breakers()
        forgotten += sum(now != then for now, then in zip(five.breakers("breaker_until"), until, strict=True))
        changed += five.changed(asked)
        early = sum(at < until[place] for place, sink in enumerate(sinks) for at, _ in sink.asked[asked[place] :])

        stages = [_hang(five, asked, until)]
        asked = [count + 1 for count in asked]
        stages.append(_fail(five, asked, until))
        asked = [count + 1 for count in asked]
        until = five.wait_open()
        changed += five.changed()
        stages.append(_come_back(five, asked, until))
        return Report(
            size=size,
            opening=opening,
            forgotten=forgotten,
            early=early,
            stages=stages,
            changed=changed + five.changed(),
            delivered=sum(len(sink.counts) for sink in sinks),
            doubled=sum(sink.counts.total() - len(sink.counts) for sink in sinks),
            dead=[entry["reason"] for entry in five.node.get("/v1/dlq")["entries"]],
            left=five.rows("pending") + five.rows("claimed"),
            still_open=five.open_breakers(),
            restarts_s=five.restarts_s,
            still_ms=stillness.longest_ms,
            seconds=time.monotonic() - began,
        )


def _hang(five: Five, asked: list[int], until: list[int]) -> Stage:
    """The breakers' time comes, and the probes hang: what is due meanwhile is parked, and parked again."""
    poll("five probes", lambda: all(now > then for now, then in zip(five.counts(), asked, strict=True)), LONG_S)
    probes = [sink.asked[count][1] for sink, count in zip(five.sinks, asked, strict=True)]
    waiting = next(hook_id for hook_id in five.ids if hook_id not in probes)
    poll("a row parked beside a probe, twice", lambda: _parks(five.node, waiting, min(until)) >= 2)
    stage = five.stage("the probe after a kill, hangs", asked, until)
    five.unrecorded.update(probes)
    return stage


def _fail(five: Five, asked: list[int], until: list[int]) -> Stage:
    """Killed while its probes hang, the node probes again at once, with as much as was due all that time."""
    for sink in five.sinks:
        sink.behave(status=500, delay_ms=PROBE_ANSWER_MS)
    five.kill()
    poll("five more probes", lambda: five.breakers("breaker") == ["open"] * SINKS)
    return five.stage("the probe after its process was killed, fails", asked, until)


def _come_back(five: Five, asked: list[int], until: list[int]) -> Stage:
    """The first sink refuses its probe for good, the others take theirs; all are well then."""
    for number, sink in enumerate(five.sinks):
        sink.script(Behaviour(status=200 if number else 410, delay_ms=PROBE_ANSWER_MS))
        sink.behave()
    poll("the end of every row", lambda: five.rows("pending") == five.rows("claimed") == 0, LONG_S)
    return five.stage("the probe answered 410 by one, 200 by four", asked, until, PROBE_ANSWER_MS)


def _parks(node: Node, hook_id: str, since: int) -> int:
    lines = node.get(f"/v1/hooks/{hook_id}")["attempts"]
    return sum(line["outcome"] == "parked" and line["at"] >= since for line in lines)


def main() -> int:
    parser = argparse.ArgumentParser(
        description="Kill a node whose five sinks are dead, and count what they are asked."
    )
    parser.add_argument("--hooks", type=int, default=FULL.hooks, help="for each sink")
    parser.add_argument("--open-ms", type=int, default=FULL.open_ms)
    parser.add_argument("--max-open-ms", type=int, default=FULL.max_open_ms)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="ankusa-breakers-", dir=Path.cwd()) as folder:
        report = run(Path(folder), Size(arguments.hooks, arguments.open_ms, arguments.max_open_ms))
    print(report)
    return 0 if report.good else 1


if __name__ == "__main__":
    sys.exit(main())
