"""Folding a log again into empty tables, by the folds that its host used, and comparing what came of it."""

from __future__ import annotations

from pathlib import Path

from ankusa.core import fold
from ankusa.core.fold import Op
from ankusa.core.set_up import entry_of, fold_set_up
from ankusa.store import keys
from ankusa.store.tables import FAMILIES, Tables
from schemas import records
from schemas.records import RouteRecord, SourceChange, Topic
from streams.local.log import LocalLog

FOLDED = sorted(set(FAMILIES) - {"log", "meta"})
"""The log itself and the store's own entries are no fold of it."""


def refold(log: LocalLog, path: Path) -> Tables:
    """New tables at `path` from the records of `log`, all topics in the order of their offsets."""
    tables = Tables(path)
    merged = sorted((offset, topic, at, record) for topic in Topic for offset, at, record in log.read(topic))
    for offset, topic, at, record in merged:
        fold_record(log, tables, topic, offset, at, record)
    return tables


def fold_record(log: LocalLog, tables: Tables, topic: Topic, offset: int, at: int, record: bytes) -> None:
    batch = tables.database.batch()
    applied = tables.apply(batch, operations(log, tables, topic, offset, at, record))
    tables.database.write(batch)
    applied.written()
    applied.announce()


def operations(log: LocalLog, tables: Tables, topic: Topic, offset: int, at: int, record: bytes) -> list[Op]:
    if topic is Topic.HOOKS:
        _, hooks = records.decode_commit(record)
        ops, _ = fold.fold_commit(
            offset,
            at,
            [(records.decode_envelope(entry), entry, body) if entry else None for entry, body in hooks],
            tables,
        )
        return ops
    if topic is Topic.OUTCOMES:
        return fold.fold_outcomes(records.decode_outcome_record(record), offset, at, tables)
    if topic is Topic.REPLAYS:
        return fold.fold_job(records.decode_job_record(record), tables)
    if topic is Topic.LIMITS:
        return fold.fold_limit(records.decode_limit_change(record))
    if topic is Topic.QUARANTINE:
        return _pen_operations(log, record)
    if topic is Topic.SOURCES:
        return _set_up_operations(records.decode_source_change(record), tables)
    if topic is Topic.ROUTES:
        return _set_up_operations(records.decode_route_record(record), tables)
    assert topic is Topic.AUDIT
    return []  # told, never folded


def _set_up_operations(change: SourceChange | RouteRecord, tables: Tables) -> list[Op]:
    _, table, key = entry_of(change)
    return list(fold_set_up(change, tables.set_up_entry(table, key)))


def _pen_operations(log: LocalLog, record: bytes) -> list[Op]:
    """The body of a held hook is in the pen alone: of one that was purged since, neither coming nor going is folded."""
    try:
        records.decode_purge(record)
    except records.DecodeError:
        held_bytes = records.msgspec.msgpack.decode(record)
        held = records.decode_held(held_bytes)
        stored = log.tables.database.get("pen", keys.pen_key(held.received_at, held.id))
        return [] if stored is None else list(fold.fold_held([(held, *records.unframe_hook(stored))]))
    return []


def content(tables: Tables) -> dict[str, dict[bytes, bytes]]:
    """Every entry of every folded family."""
    return {family: dict(tables.database.items(family, b"", b"\xff" * 20)) for family in FOLDED}
