"""What a new configuration may change in a running node, and what only a restart can.

Owns that division. It compares; it applies nothing.
"""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from ankusa.config.checks import is_loopback
from ankusa.config.hosts import has_admin
from ankusa.config.problems import ConfigError, Problem, join
from schemas.config import Config
from schemas.config_document import effective

# Paths whose change takes effect by a reload; a change anywhere else waits for a restart.
RELOADABLE = (
    "sources",
    "dispatch.concurrency",
    "dispatch.sink_concurrency",
    "dispatch.tenants",
    "rate_limits",
    "egress",
    "admin.tokens",
)


def reloadable_changes(old: Config, new: Config) -> tuple[list[str], list[str]]:
    """The paths that differ, sorted: first those a reload takes up, then those that need a restart.

    A source is named whole (`sources.stripe`), anything else by the key that differs.
    """
    changed = sorted(_differences(effective(old), effective(new), ""))
    now = [path for path in changed if _is_reloadable(path)]
    return now, [path for path in changed if not _is_reloadable(path)]


def taken_up(running: Config, new: Config) -> Config:
    """`running` with what a reload takes of `new`: what the node goes by from then on, until it is restarted.

    Raises ConfigError where `new` is sound by itself and not beside what stays: tokens may all go with a listener that
    others reach, but that one listens on until the restart.
    """
    if running.admin.tokens and not new.admin.tokens and not running.admin.insecure:
        for ip in _admin_ips(running):
            if not is_loopback(ip):
                message = f"cannot all go while the node listens on {ip}, which others reach: restart it for that"
                raise ConfigError([Problem("admin.tokens", message)])
    for path in RELOADABLE:
        section, _, key = path.partition(".")
        value = getattr(new, section)
        if key:
            value = replace(getattr(running, section), **{key: getattr(value, key)})
        running = replace(running, **{section: value})
    return running


def _admin_ips(config: Config) -> list[str]:
    """Where the listeners are that go by `admin.tokens`."""
    if not has_admin(config.node, config.log):
        return []
    listening = [config.admin.ip] if config.admin.enabled else []
    return [*listening, config.routes.admin.ip] if config.routes.enabled else listening


def _differences(old: dict[str, Any], new: dict[str, Any], path: str) -> list[str]:
    found: list[str] = []
    for key in old.keys() | new.keys():
        before, after, where = old.get(key), new.get(key), join(path, key)
        if before == after and (key in old) == (key in new):
            continue
        if path != "sources" and isinstance(before, dict) and isinstance(after, dict):
            found += _differences(before, after, where)
        else:
            found.append(where)
    return found


def _is_reloadable(path: str) -> bool:
    return any(path == known or path.startswith(f"{known}.") for known in RELOADABLE)
