"""The ids that brokers give a partition's topics, as its tables know them: how a topic that was made again is told.

A topic that is deleted and made again has the same name and another id, and its offsets begin at 0 once more: records
of it lie at offsets that are folded already. Nothing else tells. Where it ends does only until it has grown past its
tables, and the consumer, which then goes back to the beginning, is handed by Faust nothing below what it has read. So
the ids go into the tables, and with them into the changelog, and whoever has a partition, or takes it over, compares.

Owns the entry and the comparing. Who asks the brokers is `id_reader.py`.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from ankusa.store.errors import StoreError
from ankusa.store.tables import Tables
from schemas import records
from schemas.records import DecodeError
from streams.kafka.changelog import LETTERS, Entry

CHANGELOG = "changelog"

TopicIds = Mapping[str, str]
"""By the name of a topic without the fleet's prefix. A broker that gives a topic no id leaves it out."""

_KEY = b"topics"

_decode = msgspec.msgpack.Decoder(dict[str, str]).decode


def known_ids(tables: Tables) -> TopicIds:
    """What the tables know, nothing when they are new. Raises StoreError where that cannot be read."""
    stored = tables.database.get("meta", _KEY)
    try:
        return {} if stored is None else _decode(stored)
    except DecodeError as error:
        raise StoreError(f"{tables.database.path}: the ids of its topics cannot be decoded: {error}") from error


def put_ids(tables: Tables, ids: TopicIds) -> None:
    """Into the tables: `ids_entry` says the same to the changelog."""
    batch = tables.database.batch()
    batch.put(_KEY, records.encode(ids), tables.database.handles["meta"])
    tables.database.write(batch)


def ids_entry(ids: TopicIds) -> Entry:
    return LETTERS["meta"] + _KEY, records.encode(ids)


def made_again(known: TopicIds, found: TopicIds) -> str | None:
    """Which topic was made again since its id was `known`, and the way out; None where none was."""
    for name, was in known.items():
        now = found.get(name, was)
        if now != was:
            return (
                f"{name} was made again: its id is {now}, and the tables are of {was} "
                '(see "A topic that was made again" in docs/kafka.md)'
            )
    return None


def taken_over(known: TopicIds, found: TopicIds) -> str | None:
    """The same of tables that somebody is about to own. A changelog of another id that says what they know was copied
    from another cluster with all the rest: what ids say there is nothing to this one."""
    return made_again(known, found) if known.get(CHANGELOG) == found.get(CHANGELOG) else None


def known_next(known: TopicIds, found: TopicIds) -> TopicIds:
    """What tables that are `taken_over` know from then on. An id that brokers do not give now is kept: those that do so
    later are compared with it. But not where the changelog is another cluster's copy: its ids are of no use here."""
    copied = found.get(CHANGELOG, known.get(CHANGELOG)) != known.get(CHANGELOG)
    return dict(found) if copied else {**known, **found}
