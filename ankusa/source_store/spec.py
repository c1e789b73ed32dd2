"""One API-managed source as it is kept and as it is shown.

Kept is its document, the mapping a file would have with every default filled in, sealed. Shown is the same with its
secrets hidden. Owns both forms and the way back; without a key nothing that holds a secret is kept.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
from msgspec import Struct

from ankusa.config import ConfigError
from ankusa.config.managed import managed_source
from ankusa.config.problems import at_index, join
from ankusa.redact import redact_tree
from ankusa.seal import Seal, UnsealError
from schemas.config import Http, ManagedSource, Retry
from schemas.config_document import source_document
from schemas.records import SourceChange


class Entry(Struct, frozen=True):
    """A source and when it was made and last changed, unix ms."""

    source: ManagedSource
    created_at: int
    updated_at: int


class SecretsNeedKeyError(Exception):
    """The source holds a secret, at `field`, and the node has no key to seal it with."""

    def __init__(self, field: str) -> None:
        super().__init__(field)
        self.field = field


class UnreadableError(Exception):
    """A kept source cannot be read. The message says why, and holds no secret."""


def keep(entry: Entry, seal: Seal) -> SourceChange:
    """The record that stores an entry. Raises SecretsNeedKeyError."""
    source, document = entry.source, source_document(entry.source)
    if not seal.has_key and (secret := next(_hidden(document, redact_tree(document), ""), None)) is not None:
        raise SecretsNeedKeyError(secret)
    sealed = seal.seal(msgspec.json.encode(document), source.source_id)
    return SourceChange(source.source_id, source.tenant, source.name, entry.updated_at, entry.created_at, sealed)


def read(kept: SourceChange, seal: Seal, retry: Retry) -> Entry:
    """The entry that `keep` stored. Raises UnreadableError; destinations are not judged again."""
    try:
        document = msgspec.json.decode(seal.open(kept.spec or b"", kept.source_id), type=dict[str, Any])
        source = managed_source(kept.tenant_id, kept.name, document, retry, None)
    except UnsealError as error:
        raise UnreadableError(str(error)) from None
    except msgspec.DecodeError:
        raise UnreadableError("is damaged") from None
    except ConfigError as error:
        raise UnreadableError("; ".join(map(str, error.problems))) from None
    return Entry(source, kept.created_at, kept.at)


def shown(entry: Entry, http: Http) -> dict[str, Any]:
    """The source as the API and the audit trail show it."""
    source, document = entry.source, redact_tree(source_document(entry.source))
    return {
        "tenant": source.tenant,
        "name": source.name,
        "source_id": source.source_id,
        "ingest_path": ingest_path(source, http),
        "verify": document["verify"],
        "on_verify_failure": document["on_verify_failure"],
        "dedupe": document.get("dedupe"),
        "forward_headers": document.get("forward_headers"),
        "retry": document["retry"],
        "sinks": document["sinks"],
        "created_at": entry.created_at,
        "updated_at": entry.updated_at,
    }


def ingest_path(source: ManagedSource, http: Http) -> str:
    """The path of its catch URL."""
    by_tenant = http.routing == "tenant_path"
    return f"{http.prefix}/{source.tenant}/{source.name}" if by_tenant else f"{http.prefix}/{source.source_id}"


def _hidden(value: Any, redacted: Any, path: str) -> Iterator[str]:
    """The paths at which redaction changed something."""
    if isinstance(value, dict) and isinstance(redacted, dict):
        for key, inner in value.items():
            yield from _hidden(inner, redacted[key], join(path, key))
    elif isinstance(value, list | tuple) and isinstance(redacted, list):
        for index, (inner, other) in enumerate(zip(value, redacted, strict=True)):
            yield from _hidden(inner, other, at_index(path, index))
    elif value != redacted:
        yield path
