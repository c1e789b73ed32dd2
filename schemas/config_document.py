"""A `Config` written back as the document it is read from: the YAML's spelling, defaults filled in.

Owns that one direction only; reading is in `ankusa/config`. The result holds secrets in clear: whoever shows
it to anybody passes it through `ankusa.redact` first.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from schemas.config import Config, Dedupe, Sink, Source


def effective(config: Config) -> dict[str, Any]:
    """The full document. Dumped as YAML and loaded again it gives an equal `Config`.

    An optional key that is not set is left out, except where leaving it out would mean its default.
    """
    document: dict[str, Any] = msgspec.to_builtins(config)
    del document["demo"]
    document["kafka"]["security"] = _set_keys(document["kafka"]["security"])
    document["source_store"] = _set_keys(document["source_store"])
    document["admin"]["tokens"] = [_set_keys(token) for token in document["admin"]["tokens"]]
    document["dispatch"]["tenants"] = {
        name: _set_keys(tenant) for name, tenant in document["dispatch"]["tenants"].items()
    }
    document["sources"] = {name: source_document(source) for name, source in config.sources.items()}
    written: dict[str, Any] = map_strings(document, escape_references)
    return written


def escape_references(text: str) -> str:
    """Keep `${...}` in a value from being read as a reference: `$${`."""
    return text.replace("${", "$${")


def map_strings(value: Any, change: Callable[[str], str]) -> Any:
    """A copy of a document with every string value (never a key) passed through `change`."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, dict):
        return {key: map_strings(item, change) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [map_strings(item, change) for item in value]
    return value


def source_document(source: Source) -> dict[str, Any]:
    """One source as the mapping that stands at its name, references not escaped."""
    written: dict[str, Any] = _set_keys(msgspec.to_builtins(source))
    del written["name"]
    written["verify"] = _set_keys(written["verify"])
    written["retry"] = _set_keys(written["retry"])
    if source.dedupe is not None:
        written["dedupe"] = _dedupe(source.dedupe)
    written["sinks"] = [_sink(sink) for sink in source.sinks]
    return written


def _dedupe(dedupe: Dedupe) -> dict[str, Any]:
    return _set_keys(msgspec.to_builtins(dedupe))


def _sink(sink: Sink) -> dict[str, Any]:
    written: dict[str, Any] = {"type": sink.type, **msgspec.to_builtins(sink.options)}
    retry = _set_keys(msgspec.to_builtins(sink.retry))
    if retry:
        written["retry"] = retry
    if sink.ordered:
        written["ordered"] = True
    if sink.ordering_key is not None:
        written["ordering_key"] = _set_keys(msgspec.to_builtins(sink.ordering_key))
    return written


def _set_keys(mapping: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in mapping.items() if value is not None}
