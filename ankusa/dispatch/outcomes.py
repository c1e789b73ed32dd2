"""The outcome buffer: outcomes wait a few milliseconds and are written as one batch (spec 03 "Rows").

Losing the buffer means redelivery, never loss. A store that refuses keeps it: the rows stay claimed, so the window
bounds how much can wait, and the write is tried again every second.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from ankusa.dispatch.breakers import Breakers
from ankusa.dispatch.claims import Claim
from ankusa.dispatch.ports import DispatchHost
from ankusa.store.errors import StoreError
from schemas.records import Outcome, OutcomeBatch

log = logging.getLogger("ankusa.dispatch")

FLUSH_MS = 10
FLUSH_OUTCOMES = 256
"""A batch is written when it is this old or this large: small enough that a crash redelivers little."""

REFUSED_MS = 1000


class OutcomeBuffer:
    """Outcomes on their way to the log, each with its claim. `written` hears of each batch that is in the store."""

    def __init__(
        self, host: DispatchHost, breakers: Breakers, clock: Callable[[], int], written: Callable[[list[Claim]], None]
    ) -> None:
        self._host = host
        self._breakers = breakers
        self._clock = clock
        self._written = written
        self._items: list[tuple[Outcome, Claim]] = []
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False
        self.refused = 0

    def __len__(self) -> int:
        return len(self._items)

    def add(self, outcome: Outcome, claim: Claim) -> None:
        """Take an outcome; not after `close`, when an attempt that would not end ends all the same."""
        if self._closed:
            return
        self._items.append((outcome, claim))
        if len(self._items) >= FLUSH_OUTCOMES and not self.refused:
            self.flush()
        elif self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(FLUSH_MS / 1000, self.flush)

    def flush(self) -> bool:
        """Write what waits. False when the store refuses: it is kept and tried again."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        items, self._items = self._items, []
        size = FLUSH_OUTCOMES
        while items:
            part, items = items[:size], items[size:]
            # A refused write may be in the store all the same: what is tried again is judged by the rows as they are.
            claimed = {} if self.refused else {(claim.seq, claim.sink): claim.row for _, claim in part}
            moves = self._breakers.take_moves(self._clock())
            try:
                self._host.publish(OutcomeBatch(tuple(outcome for outcome, _ in part), moves), claimed)
            except StoreError as error:
                self._breakers.put_back(moves)
                self._keep(part + items, error)
                return False
            except Exception:
                self._breakers.put_back(moves)
                log.exception("event=outcomes_failed count=%d first_seq=%d", len(part), part[0][0].seq)
                if len(part) > 1:  # one by one, so that the one that cannot be written costs its own row alone:
                    items, size = part + items, 1  # it stays claimed, and is due again at the next start
                continue
            self.refused = 0
            self._written([claim for _, claim in part])
        return True

    def close(self) -> None:
        """Give up what could not be written: its rows are due again at the next start."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._closed = True

    def _keep(self, items: list[tuple[Outcome, Claim]], error: StoreError) -> None:
        self._items = items + self._items
        if not self.refused:
            log.warning("event=outcomes_refused waiting=%d reason=%s", len(self._items), error)
        self.refused += 1
        self._timer = asyncio.get_running_loop().call_later(REFUSED_MS / 1000, self.flush)
