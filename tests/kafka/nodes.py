"""`ankusa serve` on a broker, as processes, and how to post to one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ankusa.demo.ask import ask
from schemas.config import Config
from schemas.config_document import effective
from tests.support.node_process import children, free_port, is_running, poll

STOP_S = 90.0


class Served:
    """A started `ankusa serve`."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path, http_port: int) -> None:
        self.process = process
        self.http_port = http_port
        self._log = log

    def log(self) -> str:
        return self._log.read_text()

    def post(self, source: str = "orders", body: Mapping[str, Any] | None = None) -> tuple[int, dict[str, Any]]:
        return ask(self.http_port, "POST", f"/webhooks/{source}", dict(body or {}))

    def accepted(self, source: str = "orders", body: Mapping[str, Any] | None = None) -> str:
        """Post a hook until it is taken, its id. Refused meanwhile only as while no broker answers: on a busy machine
        one may be silent for the second after which an edge gives it up."""

        def taken() -> str | None:
            status, answer = self.post(source, body)
            said = answer.get("status") or answer.get("error")
            assert (status, said) in ((201, "accepted"), (503, "store_unavailable")), answer
            return answer["id"] if status == 201 else None

        hook_id: str = poll("a hook that is taken", taken)
        return hook_id

    def ready(self) -> bool:
        assert self.process.poll() is None, self.log()
        return ask(self.http_port, "GET", "/ready")[0] == 200


@contextmanager
def serving(directory: Path, config: Config, *, ready: bool = True, **sections: Any) -> Iterator[Served]:
    """`ankusa serve` with `config`, and `sections` of its file in place of its own."""
    http_port = free_port()
    directory.mkdir(exist_ok=True)
    file = directory / "ankusa.yaml"
    document = {**effective(config), "http": {"port": http_port}, "admin": {"enabled": False}, **sections}
    document["node"]["data_dir"] = str(directory / "data")
    file.write_text(json.dumps(document))
    env = {name: value for name, value in os.environ.items() if not name.startswith("ANKUSA_") and name != "PORT"}
    log = directory / "serve.log"
    with log.open("wb") as output:
        command = [sys.executable, "-m", "ankusa.cli", "serve", "--config", str(file)]
        process = subprocess.Popen(command, env=env, stdin=subprocess.DEVNULL, stdout=output, stderr=output)
    started: list[int] = []
    try:
        served = Served(process, log, http_port)
        if ready:
            poll("a ready node", served.ready)
        started = children(process.pid)
        yield served
    finally:
        for pid in {*started, *children(process.pid)}:
            if is_running(pid):
                os.kill(pid, 9)
        process.kill()
        process.wait()
