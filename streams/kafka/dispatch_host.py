"""The Kafka host of the dispatcher and of check-ins: rows, hooks and outcomes of the partitions that a worker owns.

What is published goes to the partition of its rows and comes back through the fold; until then its claims hold. Owns
where each question is asked; the log, the due rows and the hooks that have to be fetched are its parts'.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial

from ankusa.dispatch import waiting
from ankusa.dispatch.ports import Place, Waiting, Written
from ankusa.store import keys
from ankusa.store.errors import StoreError
from ankusa.store.tables import Tables
from schemas import records
from schemas.records import (
    Breaker,
    BreakerMove,
    BreakerState,
    CheckIn,
    DecodeError,
    Envelope,
    Outcome,
    OutcomeBatch,
    Row,
    RowState,
    Topic,
)
from streams.kafka.bodies import Bodies
from streams.kafka.due import FleetDue
from streams.kafka.fleet_log import FleetLog
from streams.kafka.places import partition_of

REFUSED_MS = 2000
"""How long one refusal by the log counts: what was refused is tried again every second, so a log that goes on refusing
is unavailable without a break, and one that takes records again is available at once."""


class _Store:
    """A partition's tables as `waiting` reads them: whatever is in them is durable."""

    undurable: Collection[int] = ()

    def __init__(self, tables: Tables) -> None:
        self.tables = tables


class KafkaDispatchHost:
    """Implements `ankusa.dispatch.ports.DispatchHost` and `ankusa.claim_check.check_ins.CheckInHost`."""

    def __init__(self, fleet: FleetLog, bodies: Bodies, doubtful: Callable[[], bool]) -> None:
        """`doubtful`: whether the rows may be another worker's by now (`membership.py`)."""
        self._fleet = fleet
        self._bodies = bodies
        self._doubtful = doubtful
        self.live = FleetDue()
        self.replayed = FleetDue()
        self._refused: tuple[int, str] | None = None

    @property
    def unavailable(self) -> str | None:
        if self._doubtful():
            return "the group of the workers is not heard"
        if self._refused is None or self._fleet.now() - self._refused[0] >= REFUSED_MS:
            return None
        return self._refused[1]

    # -- partitions -----------------------------------------------------------

    def add(self, number: int) -> None:
        """Rows of a partition of the fleet log may be claimed."""
        tables = self._fleet.partitions[number].tables
        self._bodies.add(number)
        self.live.add(number, tables.live)
        self.replayed.add(number, tables.replayed)

    def remove(self, number: int) -> None:
        """No row of a partition is handed out any more, and nothing of its tables is held."""
        self.live.remove(number)
        self.replayed.remove(number)
        self._bodies.remove(number)

    def stalled(self, number: int, now: bool) -> None:
        """Whether what attempts of a partition come to is not folded `now`: then none of its rows is handed out."""
        for due in (self.live, self.replayed):
            (due.stall if now else due.go_on)(number)

    @property
    def partition_of(self) -> Callable[[int], int]:
        return partition_of

    def _tables(self, seq: int) -> Tables:
        """The tables of a seq's partition. Raises StoreError when that is another node's."""
        tables = self._fleet.tables(partition_of(seq))
        if tables is None:
            raise StoreError(f"partition {partition_of(seq)} is not this node's any more")
        return tables

    # -- rows and hooks ---------------------------------------------------------

    def claimable(self, seq: int) -> bool:
        return True

    def may_begin(self) -> bool:
        return not self._doubtful()

    def rows(self, places: list[Place]) -> Sequence[Row | None]:
        by_partition: dict[int, list[int]] = {}
        for index, (seq, _) in enumerate(places):
            by_partition.setdefault(partition_of(seq), []).append(index)
        rows: list[Row | None] = [None] * len(places)
        for indexes in by_partition.values():
            tables = self._tables(places[indexes[0]][0])
            for index, row in zip(indexes, tables.claim_rows([places[index] for index in indexes]), strict=True):
                rows[index] = row
        return rows

    def hook(self, seq: int) -> tuple[Envelope, bytes] | None:
        return self._tables(seq).hook(seq)

    def fetches(self, seq: int, fetched: Callable[[], None]) -> bool:
        tables = self._fleet.tables(partition_of(seq))
        if tables is None or self._bodies.missing(seq) or self._bodies.stored(tables, seq):
            return False
        self._bodies.fetch(seq, fetched)
        return True

    def hook_stored(self, seq: int) -> bool:
        return self._is_stored(keys.u64(seq) in self._tables(seq).database.present("hooks", [keys.u64(seq)]), seq)

    def _is_stored(self, at_hand: bool, seq: int) -> bool:
        """Whether a hook is there: one that has to be fetched is, until the topic says otherwise."""
        return at_hand or not (self._bodies.missing(seq) or self._bodies.stored(self._tables(seq), seq))

    def waiting(self, source_id: str) -> Iterator[list[Waiting]]:
        for number in list(self._fleet.partitions):
            tables = self._fleet.tables(number)
            if tables is None:
                continue
            for found in waiting.waiting(_Store(tables), source_id):
                yield [one._replace(hook_stored=self._is_stored(one.hook_stored, one.place[0])) for one in found]
                if self._fleet.tables(number) is not tables:
                    break

    def breakers(self) -> Mapping[str, Breaker]:
        """Of all partitions: of two entries of a sink key the later stands."""
        found: dict[str, Breaker] = {}
        for partition in self._fleet.partitions.values():
            for key, breaker in partition.tables.breakers().items():
                if key not in found or found[key].at < breaker.at:
                    found[key] = breaker
        return found

    # -- publishing -------------------------------------------------------------

    def publish(self, batch: OutcomeBatch, claimed: Mapping[Place, Row], written: Written) -> None:
        number = partition_of(batch.items[0].seq)
        landed = partial(self._landed, number, batch.items, written)
        try:
            self._fleet.publish(Topic.OUTCOMES, number, records.encode(batch), landed)
        except StoreError as error:
            self._refuse(number, error)
            raise
        self._tell_others(number, batch.breakers)

    def _landed(self, number: int, items: Sequence[Outcome], written: Written, error: StoreError | None) -> None:
        """Its claims are free. A row that is pending still, or again, was passed over while it was claimed: the fold
        may have announced it before this, or refused a stale outcome."""
        if error is not None:
            self._refuse(number, error)
        else:
            self._refused = None
        written(error)
        tables = self._fleet.tables(number)
        if error is not None or tables is None:
            return
        places = [(outcome.seq, outcome.sink) for outcome in items]
        stored = tables.database.get_many("rows", [keys.row_key(*place) for place in places])
        for place, value in zip(places, stored, strict=True):
            row = None if value is None else _decoded(value)
            if row is not None and row.state is RowState.PENDING:
                due = self.live if row.replay_id is None else self.replayed
                due.give_back(row.tenant_id, row.at, *place)

    def _refuse(self, number: int, error: StoreError) -> None:
        """Nothing more is claimed while the log refuses what attempts come to."""
        if self._fleet.tables(number) is not None:
            self._refused = (self._fleet.now(), str(error))

    def _tell_others(self, number: int, moves: Sequence[BreakerMove]) -> None:
        """A breaker that closed leaves every partition that knew it as open, or a restart would believe the oldest."""
        for move in moves:
            if move.breaker.state is not BreakerState.CLOSED or move.breaker.failures:
                continue
            for other, partition in self._fleet.partitions.items():
                if other != number and partition.tables.breaker(move.key) is not None:
                    value = records.encode(OutcomeBatch((), (move,)))
                    self._fleet.publish(Topic.OUTCOMES, other, value, _unheard)

    # -- check-ins ----------------------------------------------------------------

    def checked_in(self, seq: int) -> tuple[str, int] | None:
        return self._tables(seq).checked_in(seq)

    async def check_in(self, record: CheckIn) -> None:
        await self._fleet.append(Topic.OUTCOMES, partition_of(record.seqs[0]), records.encode(record))


def _unheard(error: StoreError | None) -> None:
    """A move that is lost costs a probe."""


def _decoded(value: bytes) -> Row | None:
    try:
        return records.decode_row(value)
    except DecodeError:
        return None
