"""One hook as the API shows it: what was accepted, the rows that are left, the history (spec 07). Reads only.

A hook's record goes a while after its last row; history and id stay longer. What is left of such a hook does not say
whose it was, so its tenant is then the one its source has now.
"""

from __future__ import annotations

import base64
from collections.abc import Callable
from typing import Literal

from ankusa.operations import Tenants
from ankusa.redact import redact_tree
from ankusa.store.tables import Tables
from schemas.api import Header, Hook, HookAttempt, HookRow
from schemas.records import Attempt, DecodeError, Envelope, Row, RowState
from streams.operations.names import ERROR_CLASSES, OUTCOMES

_STATES: dict[RowState, Literal["pending", "dead", "member"]] = {
    RowState.PENDING: "pending",
    RowState.DEAD: "dead",
    RowState.MEMBER: "member",
}


def view(
    tables: Tables,
    hook_id: str,
    *,
    body: bool,
    tenants: Tenants,
    claimed: Callable[[int, int], bool],
    tenant_of: Callable[[str], str | None],
) -> Hook | None:
    """The hook, None when there is none of this id for `tenants`. `tenant_of` knows the sources as they are now."""
    seq = tables.seq_of(hook_id)
    if seq is None:
        return None
    try:
        found, stored = tables.hook(seq), True
        stored = found is not None
    except DecodeError:
        found, stored = None, True
    rows, attempts = tables.rows_of(seq), tables.attempts_of(seq)
    envelope = found[0] if found else None
    source_id, tenant_id = _owner(envelope, rows, attempts, tenant_of)
    if tenants is not None and tenant_id not in tenants:
        return None
    return Hook(
        id=hook_id,
        seq=seq,
        stored=stored,
        source_id=source_id,
        tenant_id=tenant_id,
        received_at=envelope.received_at if envelope else None,
        size=len(found[1]) if found else None,
        content_type=envelope.content_type if envelope else None,
        idempotency_key=envelope.idempotency_key if envelope else None,
        dedupe_key=envelope.dedupe_key if envelope else None,
        flagged=envelope.flagged if envelope else None,
        headers=[_header(name, value) for name, value in envelope.headers] if envelope else None,
        rows=[_row(sink, row, claimed=claimed(seq, sink)) for sink, row in rows],
        attempts=[_attempt(sink, attempt) for sink, _, attempt in attempts],
        body_base64=base64.b64encode(found[1]).decode() if body and found else None,
    )


def _owner(
    envelope: Envelope | None,
    rows: list[tuple[int, Row]],
    attempts: list[tuple[int, int, Attempt]],
    tenant_of: Callable[[str], str | None],
) -> tuple[str | None, str | None]:
    """Source and tenant, from what knows them best."""
    if envelope is not None:
        return envelope.source_id, envelope.tenant_id
    if rows:
        return rows[0][1].source_id, rows[0][1].tenant_id
    if attempts:
        source_id = attempts[0][2].source_id
        return source_id, tenant_of(source_id)
    return None, None


def _header(name: str, value: str) -> Header:
    """A request header may hold the sender's secret: it is judged as a configured one is."""
    return Header(name=name, value=redact_tree({"headers": {name: value}})["headers"][name])


def _row(sink: int, row: Row, *, claimed: bool) -> HookRow:
    pending = row.state is RowState.PENDING
    return HookRow(
        sink=sink,
        sink_type=row.sink_type,
        state="claimed" if pending and claimed else _STATES[row.state],
        due_at=row.at if pending else None,
        dead_lettered_at=row.at if row.state is RowState.DEAD else None,
        lane=row.lane,
        attempts=row.attempts,
        error=row.error,
        error_class=ERROR_CLASSES[row.error_class] if row.error_class is not None else None,
        replay_id=row.replay_id,
    )


def _attempt(sink: int, attempt: Attempt) -> HookAttempt:
    return HookAttempt(
        sink=sink,
        sink_type=attempt.sink_type,
        outcome=OUTCOMES[attempt.kind],
        attempt=attempt.attempt,
        started_at=attempt.started_at or None,
        at=attempt.at,
        error=attempt.error,
        error_class=ERROR_CLASSES[attempt.error_class] if attempt.error_class is not None else None,
        detail=attempt.detail,
        replay_id=attempt.replay_id,
    )
