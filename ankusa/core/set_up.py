"""What operators set up through the API and the node keeps: sources, routes, the global ip rules.

Each table keeps the last change of each entry, as its record; a deletion leaves nothing. Owns which record writes which
entry. Never looks inside a source's sealed document.
"""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from schemas.records import IpRulesChange, RouteChange, RouteRecord, SourceChange, Topic, encode

SetUpTable = Literal["sources", "routes"]

IP_RULES_KEY = "/ip-rules"
"""The global ip rules' key in the table of routes: no route id holds a slash."""


class PutEntry(Struct, frozen=True, gc=False):
    """Store an entry as it is now and as it was; None is not there."""

    table: SetUpTable
    key: str
    value: bytes | None
    was: bytes | None


class DropRecord(Struct, frozen=True, gc=False):
    """Take a record out of the log: of a change that was taken back, nobody may be told later."""

    topic: Topic
    offset: int


def entry_of(record: SourceChange | RouteRecord) -> tuple[Topic, SetUpTable, str]:
    """The topic a change goes to, and the table and key it writes."""
    match record:
        case SourceChange():
            return Topic.SOURCES, "sources", record.source_id
        case RouteChange():
            return Topic.ROUTES, "routes", record.id
        case IpRulesChange():
            return Topic.ROUTES, "routes", IP_RULES_KEY


def fold_set_up(record: SourceChange | RouteRecord, was: bytes | None) -> list[PutEntry]:
    """A change's operations. `was` is the entry's value before it, for the case that the change is taken back."""
    _, table, key = entry_of(record)
    return [PutEntry(table, key, None if _deletes(record) else encode(record), was)]


def _deletes(record: SourceChange | RouteRecord) -> bool:
    match record:
        case SourceChange():
            return record.spec is None
        case RouteChange():
            return record.route is None
        case IpRulesChange():
            return False
