"""The YAML's spelling turned into the shape of the structs; the way back is `schemas/config_document.py`.

Owns what a person may write shorter: a source's name as its key, a dedupe preset as one word, a sink's options
beside its type, brokers as one text, the older name of a section. Whatever is not of the expected kind passes through
untouched, for the build to complain about.
"""

from __future__ import annotations

import re
from typing import Any

from ankusa.config.problems import Problems, join

# The sink keys common to every type; the rest are the type's own options.
_SINK_KEYS = ("type", "retry", "ordered", "ordering_key")

_UNITS = ("_ms", "_bytes")
_DIGITS = re.compile(r"[0-9]{1,18}")

# Older name of a section, and the one it has now.
_RENAMED = {"storage": "archive"}


def rename(document: dict[str, Any], problems: Problems) -> dict[str, str]:
    """Give sections of older files the names of now. Returns which path was written under which name."""
    origins: dict[str, str] = {}
    for older, name in _RENAMED.items():
        if older in document:
            section = document.pop(older)
            if name in document:
                problems.add(older, f"is the older name of `{name}`, which is given too")
            else:
                document[name] = section
                origins[name] = older
    return origins


def respell(document: dict[str, Any], problems: Problems) -> None:
    """Bring `document`, in place, into the shape of `schemas.config.Config`, but for the names of the sources."""
    kafka = document.get("kafka")
    if isinstance(kafka, dict) and isinstance(kafka.get("brokers"), str):
        kafka["brokers"] = kafka["brokers"].replace(",", " ").split()
    sources = document.get("sources")
    if isinstance(sources, dict):
        document["sources"] = {name: _source(name, raw, problems) for name, raw in sources.items()}


def _source(name: str, raw: Any, problems: Problems) -> Any:
    if not isinstance(raw, dict):
        return raw
    path = join("sources", name)
    if "name" in raw:
        problems.add(join(path, "name"), "is not a known key: the name is the key of the source")
    source = {key: value for key, value in raw.items() if key != "name"}
    if isinstance(source.get("dedupe"), str):
        source["dedupe"] = {"preset": source["dedupe"]}
    if isinstance(source.get("sinks"), list):
        source["sinks"] = [_sink(sink) for sink in source["sinks"]]
    return source


def _sink(raw: Any) -> Any:
    if not isinstance(raw, dict):
        return raw
    # Pub/Sub has an option of this name too: as a text it is the topic's, as a mapping the lane's.
    own = {"ordering_key"} if isinstance(raw.get("ordering_key"), str) else set()
    common = {key: raw[key] for key in _SINK_KEYS if key in raw and key not in own}
    return {**common, "options": {key: _option(key, raw[key]) for key in raw if key not in common}}


def _option(key: str, value: Any) -> Any:
    """A number that came from a variable is text; a type's own options have no struct that would say it is one.

    A key that ends in a unit does. Any other text stays text: a secret may be all digits.
    """
    is_number = isinstance(value, str) and key.endswith(_UNITS) and _DIGITS.fullmatch(value)
    return int(value) if is_number else value
