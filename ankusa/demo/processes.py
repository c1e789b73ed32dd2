"""The demo's processes: the node as `ankusa serve` runs it, and the sink. Started, waited for, and always ended.

Owns their output, which goes to files in the demo's directory, to be shown when something goes wrong.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self

from ankusa import supervisor
from ankusa.demo.ask import ask
from ankusa.demo.setting import Setting

READY_S = 120.0
"""From a process's start to its first answer: two seconds, and many times that on a machine with other work."""

STOP_S = 2 * supervisor.STOP_S + 5.0
"""The supervisor's own worst case, edges one after the other and the engine behind them: killed before, it would leave
them to end by themselves while the demo removes their files."""

TAIL_LINES = 15


class DemoError(Exception):
    """The demo cannot go on; the message is for the person who watches."""


class Process:
    """One process of the demo; a context that ends it."""

    def __init__(self, name: str, command: list[str], directory: Path) -> None:
        self.name = name
        self._log = directory / f"{name}.log"
        with self._log.open("wb") as log:
            # A group of its own: Ctrl-C is the demo's, which ends its processes in order.
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, process_group=0, cwd=directory
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._process.poll() is not None:
            return
        self._process.terminate()
        try:
            self._process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def tail(self) -> str:
        """The last lines of its output."""
        lines = self._log.read_text(errors="replace").splitlines()
        return "\n".join(lines[-TAIL_LINES:])

    def check(self) -> None:
        """Raise DemoError when it has ended."""
        status = self._process.poll()
        if status is not None:
            raise DemoError(f"the {self.name} ended with status {status}; its last words:\n{self.tail()}")

    def wait_for(self, what: str, condition: Callable[[], bool], within_s: float = READY_S) -> None:
        """Wait until `condition` holds. Raises DemoError past `within_s`, or when the process ends meanwhile."""
        deadline = time.monotonic() + within_s
        while True:
            self.check()
            try:
                if condition():
                    return
            except OSError:
                pass  # it does not listen yet
            if time.monotonic() > deadline:
                raise DemoError(f"{what} took more than {within_s:.0f} s; the {self.name} last said:\n{self.tail()}")
            time.sleep(0.05)


def start_sink(setting: Setting) -> Process:
    command = [sys.executable, "-m", "ankusa.demo.sink"]
    command += ["--port", str(setting.sink_port), "--secret", setting.signing_secret]
    return Process("sink", command, setting.directory)


def start_node(setting: Setting) -> Process:
    command = [sys.executable, "-m", "ankusa.cli", "serve", "--config", str(setting.config_path)]
    return Process("node", command, setting.directory)


def wait_until_ready(setting: Setting, node: Process, sink: Process) -> None:
    """Return once hooks are taken and delivered."""
    sink.wait_for("starting the sink", lambda: ask(setting.sink_port, "GET", "/record")[0] == 200)
    for port in (setting.admin_port, setting.http_port):
        node.wait_for("starting the node", lambda port=port: ask(port, "GET", "/ready")[0] == 200)  # type: ignore[misc]
