"""The environment variables that win over the file.

Owns their list. Each is put into the document where the file would have it, so that it is checked by the same
rules; a fault there is named by the variable.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any


def _words(value: str) -> list[str]:
    return value.replace(",", " ").split()


def _text(value: str) -> str:
    return value


# Variable, section, key, how its text becomes the key's value. Of two for one key the later wins.
_OVERRIDES: tuple[tuple[str, str, str, Callable[[str], Any]], ...] = (
    ("ANKUSA_ROLES", "node", "roles", _words),
    ("ANKUSA_DATA_DIR", "node", "data_dir", _text),
    ("ANKUSA_LOG_TYPE", "log", "type", _text),
    ("ANKUSA_LOG_LEVEL", "log", "level", _text),
    ("ANKUSA_KAFKA_BROKERS", "kafka", "brokers", _words),
    ("PORT", "http", "port", _text),
    ("ANKUSA_HTTP_PORT", "http", "port", _text),
    ("ANKUSA_ADMIN_PORT", "admin", "port", _text),
    ("ANKUSA_ADMIN_IP", "admin", "ip", _text),
)


def override(document: dict[str, Any], env: Mapping[str, str]) -> dict[str, str]:
    """Put every variable that is set into `document`. Returns which path came from which variable.

    An empty variable counts as not set: compose files pass one on that way.
    """
    origins: dict[str, str] = {}
    for name, section, key, read in _OVERRIDES:
        text = env.get(name, "").strip()
        if not text:
            continue
        around = document.get(section)
        if around is None:
            around = document[section] = {}
        if isinstance(around, dict):  # else the build complains about the section
            around[key] = read(text)
            origins[f"{section}.{key}"] = name
    return origins
