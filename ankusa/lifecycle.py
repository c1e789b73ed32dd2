"""Audit records: what operators change is written down in the change's own batch (spec 06 "Lifecycle").

Owns how such a record is made. Who publishes them does not exist yet; it will read the topic `audit` from a cursor of
its own per sink, an offset kept in the store's `meta` family under `lifecycle/<sink>` and moved with the delivery, and
make an event's id of the record's offset, which never changes. Until then records are kept for `KEEP_MS`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from schemas.records import Change, ChangeAction, ChangeKind

KEEP_MS = 30 * 86_400_000
"""The published default of `lifecycle.retention_days`."""


def change(kind: ChangeKind, subject: str, action: ChangeAction, at: int, entity: Mapping[str, Any]) -> Change:
    """The record of one change at `at` (unix ms). `entity` is what the API shows, secrets hidden: after the change, or
    before a deletion."""
    return Change(kind, subject, action, at, msgspec.json.encode(entity))
