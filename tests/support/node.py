"""A real node that a test may hurt: its folder, configuration and ports stay, its processes come and go.

Owns the processes of one `ankusa serve` and how to talk to it.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from msgspec import Struct

from tests.support.node_process import free_port, is_running, poll, session

READY_S = 120.0
STOP_S = 90.0
ROOT = Path(__file__).parents[2]


class Answer(Struct, frozen=True):
    """One HTTP answer; `headers` by lower-cased name."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


def ask(
    port: int,
    method: str,
    path: str,
    body: bytes | None = None,
    headers: Mapping[str, str] | None = None,
    timeout_s: float = 30,
) -> Answer:
    """One request to 127.0.0.1:`port`. Raises OSError while nobody answers there."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout_s)
    try:
        connection.request(method, path, body, {"connection": "close", **(headers or {})})
        response = connection.getresponse()
        answered = {name.lower(): value for name, value in response.getheaders()}
        return Answer(response.status, answered, response.read())
    except http.client.HTTPException as error:
        raise OSError(f"no HTTP from port {port}: {type(error).__name__}") from error
    finally:
        connection.close()


class Node:
    """`ankusa serve` in `folder`. `config` is its file but for ports and data directory; `command` goes before it."""

    def __init__(
        self, folder: Path, config: Mapping[str, Any], *, data_dir: str | None = None, command: Sequence[str] = ()
    ) -> None:
        self.folder = folder
        self.http_port, self.admin_port = free_port(), free_port()
        self._file = folder / "ankusa.yaml"
        self._log = folder / "serve.log"
        self._command = [*command, sys.executable, "-m", "ankusa.cli", "serve", "--config", str(self._file)]
        self._data_dir = data_dir or str(folder / "data")
        self.process: subprocess.Popen[bytes] | None = None
        self.write(config)

    def write(self, config: Mapping[str, Any]) -> None:
        """Replace the configuration file."""
        ours: dict[str, dict[str, Any]] = {
            "node": {"data_dir": self._data_dir},
            "log": {"level": "warning"},
            "http": {"port": self.http_port},
            "admin": {"port": self.admin_port},
            "egress": {"allow": ["127.0.0.0/8"]},
        }
        merged = dict(config) | {name: keys | config.get(name, {}) for name, keys in ours.items()}
        part = self._file.with_suffix(".part")
        part.write_text(json.dumps(merged))  # JSON is YAML
        part.replace(self._file)

    # -- processes ------------------------------------------------------------

    def start(self) -> Self:
        """Start it and wait until it takes hooks. One that does not is killed."""
        self.launch()
        try:
            self.wait_ready()
        except BaseException:
            self.kill()
            raise
        return self

    def launch(self) -> None:
        env = {name: value for name, value in os.environ.items() if not name.startswith("ANKUSA_") and name != "PORT"}
        env["PYTHONPATH"] = str(ROOT)  # `command` may start it in another directory
        with self._log.open("ab") as output:
            self.process = subprocess.Popen(
                self._command,
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )

    def wait_ready(self, within_s: float = READY_S) -> None:
        poll("a ready node", self.is_ready, within_s)

    def is_ready(self) -> bool:
        assert self.process is not None and self.process.poll() is None, self.log()
        return ask(self.http_port, "GET", "/ready").status == 200 and self.admin("GET", "/ready").status == 200

    def pids(self, module: str = "") -> list[int]:
        """Its running processes, or those that run `module` ("engine_process", "edge_process")."""
        assert self.process is not None
        return [pid for pid in session(self.process.pid) if module in command_of(pid)]

    def kill(self) -> None:
        """kill -9 of every process, the supervisor stopped first so that it starts none again and asks none to end."""
        assert self.process is not None
        self.process.send_signal(signal.SIGSTOP)  # which nobody gets when it has ended
        for pid in session(self.process.pid):
            if pid != self.process.pid:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        self.process.kill()
        self.process.wait()
        poll("the end of its processes", lambda: not self.pids())

    def kill_one(self, module: str) -> int:
        """kill -9 of the only process that runs `module`; its pid."""
        (pid,) = self.pids(module)
        os.kill(pid, signal.SIGKILL)
        poll("its end", lambda: not is_running(pid))
        return pid

    def signal(self, number: int) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    def stop(self) -> int:
        """SIGTERM; the exit status."""
        self.signal(signal.SIGTERM)
        assert self.process is not None
        return self.process.wait(STOP_S)

    def log(self) -> str:
        return self._log.read_text()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        if self.process is not None:
            self.kill()

    # -- talking to it ----------------------------------------------------------

    def post(self, source: str, body: bytes = b"{}", headers: Mapping[str, str] | None = None) -> Answer:
        sent = {"content-type": "application/json", **(headers or {})}
        return ask(self.http_port, "POST", f"/webhooks/{source}", body, sent)

    def admin(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Answer:
        raw = None if body is None else json.dumps(body).encode()
        return ask(self.admin_port, method, path, raw, {"content-type": "application/json"})

    def hooks(self, ids: Iterable[str]) -> dict[str, dict[str, Any]]:
        """What the admin API says of each hook, over one connection; one that it does not know is missing."""
        connection = http.client.HTTPConnection("127.0.0.1", self.admin_port, timeout=120)
        found: dict[str, dict[str, Any]] = {}
        with contextlib.closing(connection):
            for hook_id in ids:
                connection.request("GET", f"/v1/hooks/{hook_id}")
                response = connection.getresponse()
                body = response.read()
                assert response.status in (200, 404), (hook_id, response.status, body)
                if response.status == 200:
                    found[hook_id] = json.loads(body)
        return found

    def get(self, path: str) -> Any:
        """The admin API's answer to a GET that must succeed."""
        answer = self.admin("GET", path)
        assert answer.status == 200, (path, answer)
        return answer.json


def command_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""
