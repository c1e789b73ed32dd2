"""What the dispatcher asks of a host: its due rows, its hooks, and a log to publish outcomes to."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple, Protocol

from ankusa.dispatch.sources import DispatchSource
from ankusa.store.errors import StoreError
from schemas.records import Breaker, Envelope, OutcomeBatch, Row

Place = tuple[int, int]
"""A row's id: `(seq, sink)`."""


Written = Callable[[StoreError | None], None]
"""Told once that what was published is in the store, or why it is not: then it may be published again."""


class Waiting(NamedTuple):
    """A row that waits, pending or as a member of a lane, and whether its hook is still there."""

    place: Place
    row: Row
    hook_stored: bool


class Due(Protocol):
    """Due rows of one class, by tenant (`ankusa/store/due.py` is the RocksDB one)."""

    def turn(self, at: int) -> OrderedDict[str, None]: ...
    def page(
        self, tenant_id: str, at: int, limit: int, wanted: Callable[[int, int], bool]
    ) -> list[tuple[int, int, int]]: ...
    def give_back(self, tenant_id: str, due_at: int, seq: int, sink: int) -> None: ...
    def set_aside(self, tenant_id: str) -> None: ...
    def take_back(self, tenant_id: str) -> bool: ...
    def oldest_due_at(self, at: int) -> int | None: ...
    def next_due_at(self) -> int | None: ...


class DispatchHost(Protocol):
    """One node's rows. `live` and `replayed` may be replaced when the host recovers: read them at each use."""

    @property
    def live(self) -> Due: ...
    @property
    def replayed(self) -> Due: ...
    @property
    def unavailable(self) -> str | None:
        """Why nothing can be read or written now, None while all is well."""

    @property
    def partition_of(self) -> Callable[[int], int] | None:
        """The partition of a row's seq; None where there is but one. What is published together is of one partition."""

    def claimable(self, seq: int) -> bool:
        """Whether the hook is durable: a row of one that is not must not be claimed."""

    def may_begin(self) -> bool:
        """Whether attempts may begin: not while a node cannot know whether its rows are another's by now. What is
        claimed waits; what turns out to be another's is given up."""

    def rows(self, places: list[Place]) -> Sequence[Row | None]: ...
    def hook(self, seq: int) -> tuple[Envelope, bytes] | None:
        """Raises one of `records.DecodeError`."""

    def fetches(self, seq: int, fetched: Callable[[], None]) -> bool:
        """Whether the hook is not at hand and is being fetched. If so, `fetched` is called once `hook` can tell."""

    def hook_stored(self, seq: int) -> bool:
        """Whether the hook is there, decodable or not. Raises StoreError."""

    def waiting(self, source_id: str) -> Iterator[list[Waiting]]:
        """Slices of a source's rows that wait, claimed ones included, each read when it is asked for. A slice is of
        one partition and may be empty; what one says holds until something else is written. Raises StoreError."""

    def breakers(self) -> Mapping[str, Breaker]:
        """Stored breakers by sink key text."""

    def publish(self, batch: OutcomeBatch, claimed: Mapping[Place, Row], written: Written) -> None:
        """Append and fold outcomes of one partition; `claimed` holds their rows as claimed.

        `written` is called when they are folded: before this returns, or later from the event loop. Until then their
        rows may look as before. Raises StoreError when they are refused at once; then `written` is not called.
        """


class SourcesUnavailableError(Exception):
    """The source store cannot answer: nobody knows whether the source exists."""


class Sources(Protocol):
    """Sources as they are now."""

    def resolve(self, source_id: str) -> DispatchSource | None:
        """None when the source is gone. Raises SourcesUnavailableError."""
