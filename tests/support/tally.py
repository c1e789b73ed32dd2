"""What became of a load: every answer set against what arrived at the sink."""

from __future__ import annotations

import time
from collections.abc import Iterable

from msgspec import Struct

from tests.support.load import Load
from tests.support.marked_sink import SinkProcess

POLL_S = 0.05


class Tally(Struct, frozen=True):
    """Counts of hooks. `lost`: answered 201 and never delivered. `refused_delivered`: answered otherwise, and delivered
    all the same. `unanswered_delivered`: delivered although the answer never came, as may be."""

    accepted: int
    refused: int
    unanswered: int
    arrived: int
    lost: int
    duplicates: int
    refused_delivered: int
    unanswered_delivered: int

    def __str__(self) -> str:
        return ", ".join(f"{name.replace('_', ' ')} {getattr(self, name)}" for name in self.__struct_fields__)


def settle(loads: Iterable[Load], sink: SinkProcess, within_s: float = 60) -> Tally:
    """Wait until every accepted hook has arrived, or nothing has for `within_s`; count. The loads must have ended."""
    loads = list(loads)
    ids = set().union(*(load.ids for load in loads))
    seen, since_s = -1, time.monotonic()
    while not ids <= sink.refresh().by_id.keys():
        if (arrived := sink.by_id.total()) != seen:
            seen, since_s = arrived, time.monotonic()
        elif time.monotonic() - since_s > within_s:
            break  # what is missing is the count's to say
        time.sleep(POLL_S)
    return count(loads, sink)


def count(loads: Iterable[Load], sink: SinkProcess) -> Tally:
    loads = list(loads)
    sink.refresh()
    ids = set().union(*(load.ids for load in loads))
    return Tally(
        accepted=sum(len(load.accepted) for load in loads),
        refused=sum(len(load.refused) for load in loads),
        unanswered=sum(len(load.unanswered) for load in loads),
        arrived=len(sink.by_id),
        lost=len(ids - sink.by_id.keys()),
        duplicates=sink.by_id.total() - len(sink.by_id),
        refused_delivered=sum(mark in sink.by_mark for load in loads for mark in load.refused),
        unanswered_delivered=sum(mark in sink.by_mark for load in loads for mark in load.unanswered),
    )
