"""Hooks kept in memory from their commit, or from the claim of their rows, until they are settled.

Owns the bound on what they take and which goes when it is reached: the oldest. Never reads a store: what is not here is
read there.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable

from ankusa.core import ops as operations
from schemas.records import Envelope, Row, RowState

HOOK_OVERHEAD_BYTES = 300
"""What a hook costs beside its bytes: the envelope and its strings."""

ROW_BYTES = 300
"""What each of its rows costs: a hook may have many sinks."""

HEADER_BYTES = 160
"""What each header costs beside its bytes: two strings and their pair. A head may hold thousands of short ones."""

NO_ROWS: dict[int, Row] = {}
"""For a hook whose rows are not kept. Nobody puts anything in."""


class _Kept:
    """One hook, the rows that nobody has claimed yet by sink, and what all of it takes."""

    __slots__ = ("hook", "rows", "size_bytes")

    def __init__(self, hook: tuple[Envelope, bytes], rows: dict[int, Row], size_bytes: int) -> None:
        self.hook = hook
        self.rows = rows
        self.size_bytes = size_bytes


class RecentHooks:
    """By seq, the oldest first. `limit_bytes` bounds `held_bytes`; a single hook above it is not kept."""

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.held_bytes = 0
        # Ordered, since the first of a plain dict that is emptied from its front is found by passing all that went.
        self._kept: OrderedDict[int, _Kept] = OrderedDict()

    def __len__(self) -> int:
        return len(self._kept)

    def __contains__(self, seq: int) -> bool:
        return seq in self._kept

    def seqs(self) -> list[int]:
        """The oldest first."""
        return list(self._kept)

    def rows(self) -> list[tuple[int, int]]:
        """The places of the rows that are kept."""
        return [(seq, sink) for seq, kept in self._kept.items() for sink in kept.rows]

    def keep(self, seq: int, envelope: Envelope, body: bytes, rows: dict[int, Row], size_bytes: int) -> None:
        """Keep a hook that was just stored or read, and its rows by sink; the oldest go past the bound. `size_bytes`
        are the envelope's and the body's as stored: a head may be much larger than its body."""
        size_bytes += HOOK_OVERHEAD_BYTES + ROW_BYTES * len(rows) + HEADER_BYTES * len(envelope.headers)
        before = self._kept.get(seq)
        if before is not None:
            self.held_bytes -= before.size_bytes
        self._kept[seq] = _Kept((envelope, body), rows, size_bytes)
        self.held_bytes += size_bytes
        while self.held_bytes > self.limit_bytes:
            self.held_bytes -= self._kept.popitem(last=False)[1].size_bytes

    def hook(self, seq: int) -> tuple[Envelope, bytes] | None:
        kept = self._kept.get(seq)
        return None if kept is None else kept.hook

    def take_rows(self, places: Iterable[tuple[int, int]]) -> list[Row | None]:
        """The rows at `(seq, sink)`, in order, which are kept no longer; None for one that is not."""
        find = self._kept.get
        return [None if (kept := find(seq)) is None else kept.rows.pop(sink, None) for seq, sink in places]

    def forget(self, seq: int) -> None:
        """A hook is settled."""
        kept = self._kept.pop(seq, None)
        if kept is not None:
            self.held_bytes -= kept.size_bytes

    def forget_row(self, seq: int, sink: int) -> None:
        """A row is another now, and was perhaps never claimed here: where partitions move, outcomes of their last owner
        are folded behind the commits they are of."""
        kept = self._kept.get(seq)
        if kept is not None:
            kept.rows.pop(sink, None)


def due_rows(ops: Iterable[operations.Op]) -> dict[int, dict[int, Row]]:
    """The pending rows that a commit made, by seq and sink."""
    rows: dict[int, dict[int, Row]] = {}
    for op in ops:
        if type(op) is operations.PutRow and (row := op.row) is not None and row.state is RowState.PENDING:
            of_hook = rows.get(op.seq)
            if of_hook is None:
                rows[op.seq] = {op.sink: row}
            else:
                of_hook[op.sink] = row
    return rows
