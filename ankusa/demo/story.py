"""The demo's story, act by act, told with real processes (see `run`).

Owns the order of things and the verdict. Whatever happens, its processes end and its directory goes.
"""

from __future__ import annotations

import contextlib
import signal
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import FrameType
from typing import Any

from ankusa.demo.ask import ask
from ankusa.demo.processes import DemoError, Process, start_node, start_sink, wait_until_ready
from ankusa.demo.provider import TENANTS, Provider
from ankusa.demo.screen import Screen
from ankusa.demo.setting import Setting, choose_ports, draw
from ankusa.demo.tally import count, faults
from ankusa.replay.fleet import Fleet, parse_nodes
from ankusa.replay.fleet_view import ReplayView

STEADY, STUMBLED, DOWN = 120, 60, 120
"""Hooks sent while the sink works, while it refuses each first try, and while it refuses all."""

REPEATS = 10
REPLAY_RATE = 60
"""Per second: a replay of two seconds, so that its progress can be seen."""

SETTLE_S = 60.0
"""The longest an act waits for the node: each takes a few seconds, and many times that on a machine with other work."""


def run(*, once: bool) -> int:
    """Tell the story; 0 when its counts add up. Unless `once`, go on serving until Ctrl-C.

    Raises KeyboardInterrupt when it is interrupted before its end, after everything is cleaned up.
    """
    screen = Screen()
    with _ended_by_signals(), contextlib.ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="ankusa-demo-")))
        try:
            return _run(screen, directory, stack, once=once)
        except DemoError as error:
            screen.console.print(f"\nthe demo failed: {error}", markup=False, highlight=False, soft_wrap=True)
            return 1
        finally:
            _undisturbed()


def _run(screen: Screen, directory: Path, stack: contextlib.ExitStack, *, once: bool) -> int:
    ports, taken = choose_ports()
    setting = draw(directory, ports)
    setting.write()
    screen.act("Starting a node (an engine process and an edge process) and a sink that can be told to fail")
    for line in taken:
        screen.say(line)
    sink = stack.enter_context(start_sink(setting))
    node = stack.enter_context(start_node(setting))
    wait_until_ready(setting, node, sink)
    screen.say(f"hooks :{setting.http_port}  admin :{setting.admin_port}  sink :{setting.sink_port}")
    story = Story(screen, setting, node)
    story.steady()
    story.retried()
    story.dead_lettered()
    story.replayed()
    found = story.verdict()
    for line in found:
        screen.say(f"does not add up: {line}")
    if found:
        screen.say(f"the node last said:\n{node.tail()}")
        return 1
    screen.say("the counts add up: nothing lost, nothing twice, every body byte for byte as it was sent")
    if not once:
        screen.farewell(setting)
        with contextlib.suppress(KeyboardInterrupt):
            while True:
                node.check()
                sink.check()
                time.sleep(0.2)
    return 0


class Story:
    """The acts. Each leaves the node quiet for the next."""

    def __init__(self, screen: Screen, setting: Setting, node: Process) -> None:
        self._screen = screen
        self._setting = setting
        self._node = node
        self._provider = Provider(setting)
        self._next = 0
        self._dead: set[str] = set()
        self._job: Mapping[str, Any] = {}

    def steady(self) -> None:
        self._screen.act(f"1. Two tenants send {STEADY} signed hooks; the sink works")
        self._send(STEADY)
        self._wait_for_sink(STEADY)
        recognised = self._provider.send_again(REPEATS)
        self._screen.say(f"{REPEATS} of them sent once more: {recognised} recognised, answered with their first id")
        self._screen.say(f"one with a body changed after signing: answered {self._provider.send_forged(self._next)}")

    def retried(self) -> None:
        self._screen.act(f"2. The sink answers 500 to each hook's first try while {STUMBLED} more come")
        self._mode("stumble")
        self._send(STUMBLED)
        self._wait_for_sink(STEADY + STUMBLED)
        self._mode("up")

    def dead_lettered(self) -> None:
        self._screen.act(
            f"3. The sink is down (503 to everything) while {DOWN} more come; they are accepted all the same"
        )
        self._mode("down")
        self._send(DOWN)
        with self._screen.live() as update:

            def all_dead() -> bool:
                rows = self._rows()
                update(f"retrying {rows['pending'] + rows['claimed']}, dead {rows['dead']}")
                return rows["dead"] == DOWN and rows["pending"] + rows["claimed"] == 0

            self._node.wait_for("dead-lettering", all_dead, SETTLE_S)
        self._dead = self._dead_ids()

    def replayed(self) -> None:
        self._screen.act(f"4. The sink is back; a replay job puts the dead rows back at {REPLAY_RATE} a second")
        self._mode("up")
        fleet = Fleet(parse_nodes(f"127.0.0.1:{self._setting.admin_port}"))
        reports = fleet.start({"kind": "dlq", "rate": REPLAY_RATE})
        with ReplayView(self._screen.console) as view:
            (report,) = fleet.watch(reports, view, poll_s=0.1, give_up_s=SETTLE_S)
        if report.job is None or report.state != "done":
            raise DemoError(f"the replay is {report.state}: {report.trouble or (report.job or {}).get('error')}")
        job_id = report.job["id"]

        def all_settled() -> bool:
            self._job = ask(self._setting.admin_port, "GET", f"/v1/replays/{job_id}")[1]
            return int(self._job["delivered"]) + int(self._job["dead"]) >= int(self._job["moved"])

        self._node.wait_for("delivering what was replayed", all_settled, SETTLE_S)
        self._screen.say(f"moved {self._job['moved']}, delivered {self._job['delivered']}")

    def verdict(self) -> list[str]:
        """Show the table; what does not add up."""
        hooks = self._record()
        accepted = self._provider.accepted
        by_tenant = {
            tenant: count({i: each for i, each in accepted.items() if each.tenant == tenant}, self._dead, hooks)
            for tenant in TENANTS
        }
        total = count(accepted, self._dead, hooks)
        self._screen.table(by_tenant, total)
        return faults(total, self._job, self._rows()["dead"])

    def _send(self, number: int) -> None:
        numbers = range(self._next, self._next + number)
        self._next = numbers.stop
        with self._screen.live() as update:
            self._provider.send_many(numbers, lambda done: update(f"accepted {done} of {number}"))

    def _wait_for_sink(self, number: int) -> None:
        with self._screen.live() as update:

            def all_there() -> bool:
                taken = sum(1 for entry in self._record().values() if entry["ok"])
                update(f"delivered {taken} of {number}")
                return taken >= number

            self._node.wait_for("delivering", all_there, SETTLE_S)

    def _mode(self, mode: str) -> None:
        status, answer = ask(self._setting.sink_port, "POST", f"/mode/{mode}")
        if status != 200:
            raise DemoError(f"the sink answered {status} to mode {mode}: {answer}")

    def _record(self) -> dict[str, dict[str, Any]]:
        hooks: dict[str, dict[str, Any]] = ask(self._setting.sink_port, "GET", "/record")[1]["hooks"]
        return hooks

    def _rows(self) -> dict[str, int]:
        status, answer = ask(self._setting.admin_port, "GET", "/v1/stats")
        if status != 200:
            raise DemoError(f"/v1/stats answered {status}: {answer}")
        rows: dict[str, int] = answer["rows"]
        return rows

    def _dead_ids(self) -> set[str]:
        """The ids of all dead rows, page by page."""
        found: set[str] = set()
        cursor = ""
        while True:
            status, page = ask(self._setting.admin_port, "GET", f"/v1/dlq?limit=100{cursor}")
            if status != 200:
                raise DemoError(f"/v1/dlq answered {status}: {page}")
            found |= {entry["id"] for entry in page["entries"]}
            if page.get("next_cursor") is None:
                return found
            cursor = f"&cursor={page['next_cursor']}"


@contextlib.contextmanager
def _ended_by_signals() -> Iterator[None]:
    """Let SIGTERM and a closed terminal end the demo as Ctrl-C does, and give signals back at the end."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = {number: signal.signal(number, interrupt) for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _undisturbed() -> None:
    """From here on only clean up: a second Ctrl-C must not leave processes or files behind. All of it is bounded."""
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
