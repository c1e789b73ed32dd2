"""The demo's setting: ports, secrets and the configuration file of its node.

Owns every figure that the story relies on. The file it writes is an ordinary one, and a reader may start from it.
"""

from __future__ import annotations

import base64
import secrets
import socket
from pathlib import Path

from msgspec import Struct

DEFAULT_PORTS = {"http": 4000, "admin": 4002, "sink": 4010}

MAX_ATTEMPTS = 4
"""With 50, 100 and 200 ms between them, jittered down to half at most, a row dies within a second of its first try."""

CONFIG = """\
node: {{instance: demo, data_dir: {data_dir}}}
http: {{port: {http}}}
admin: {{port: {admin}}}
egress: {{allow: [127.0.0.0/8]}}          # the sink is on this machine; without this the guard refuses it
dispatch:
  breaker_failures: 0                    # with breakers, rows would wait for the sink instead of dying
  retry: {{base_ms: 50, max_ms: 200, max_attempts: {attempts}}}   # so that rows dead-letter within a second
sources:
  github:
    tenant: acme
    verify: {{type: github, secret: "{github}"}}
    dedupe: github
    sinks: [{{type: http, url: "http://127.0.0.1:{sink}/acme", secret: "{signing}"}}]
  billing:
    tenant: globex
    verify: {{type: standard_webhooks, secret: "{billing}"}}
    dedupe: standard_webhooks
    sinks: [{{type: http, url: "http://127.0.0.1:{sink}/globex", secret: "{signing}"}}]
  try:
    verify: {{type: none}}
    sinks: [{{type: http, url: "http://127.0.0.1:{sink}/try", secret: "{signing}"}}]
"""


class Setting(Struct, frozen=True):
    """Where things are in one run. Secrets are drawn for it and end with it."""

    directory: Path
    http_port: int
    admin_port: int
    sink_port: int
    github_secret: str
    billing_secret: str
    signing_secret: str

    @property
    def config_path(self) -> Path:
        return self.directory / "ankusa.yaml"

    def write(self) -> None:
        """Write the node's configuration file."""
        text = CONFIG.format(
            data_dir=self.directory / "data",
            http=self.http_port,
            admin=self.admin_port,
            sink=self.sink_port,
            attempts=MAX_ATTEMPTS,
            github=self.github_secret,
            billing=self.billing_secret,
            signing=self.signing_secret,
        )
        self.config_path.write_text(text)


def draw(directory: Path, ports: dict[str, int]) -> Setting:
    """A setting in `directory` with fresh secrets."""
    return Setting(
        directory,
        ports["http"],
        ports["admin"],
        ports["sink"],
        secrets.token_hex(24),
        _whsec(),
        _whsec(),
    )


def choose_ports() -> tuple[dict[str, int], list[str]]:
    """A port for each listener, and a line for each default that was taken."""
    chosen: dict[str, int] = {}
    said: list[str] = []
    for name, default in DEFAULT_PORTS.items():
        chosen[name] = default if _is_free(default) else _free_port()
        if chosen[name] != default:
            said.append(f"port {default} is taken, so {name} uses {chosen[name]}")
    return chosen, said


def _whsec() -> str:
    return "whsec_" + base64.b64encode(secrets.token_bytes(24)).decode()


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
