"""The node's breakers at run time: stored state, probes in memory, and the moves that wait to be published.

The core decides; this remembers. State is loaded when the dispatcher starts and folded from what it publishes, so a
restart keeps every open breaker and stampedes no dead sink. Never parks a row itself.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Set

from ankusa.core import breaker as core
from ankusa.core.breaker import BreakerSettings, Phase, Verdict
from schemas.config import Dispatch
from schemas.records import Breaker, BreakerMove, BreakerState

log = logging.getLogger("ankusa.dispatch")

PROBE_PARK_MS = 1000
"""Rows claimed while a probe runs come back after a second, or after as long as the probe has run already: soon when
it succeeds, and a probe that hangs for its whole timeout costs each row five parks, not thirty."""


class Breakers:
    """Breakers by sink key text; a sink key without an entry is closed and has not failed."""

    def __init__(self, stored: Mapping[str, Breaker], settings: Dispatch) -> None:
        self._by_key = dict(stored)
        self._probes: dict[str, int] = {}
        self._changed: set[str] = set()
        self.reconfigure(settings)

    def reconfigure(self, settings: Dispatch) -> None:
        self._settings = BreakerSettings(
            settings.breaker_failures, settings.breaker_open_ms, settings.breaker_max_open_ms
        )

    def open(self) -> dict[str, Breaker]:
        """Open breakers, half-open ones included."""
        return {key: breaker for key, breaker in self._by_key.items() if breaker.state is BreakerState.OPEN}

    def phase(self, key: str, at: int) -> Phase:
        breaker = self._by_key.get(key) if self._settings.failures else None
        return Phase.CLOSED if breaker is None else core.phase(breaker, at, probing=key in self._probes)

    def verdict(self, key: str, at: int) -> Verdict:
        """What happens to a claimed row of this sink key; a PROBE is taken as begun. Off, a breaker lets all pass."""
        verdict = core.VERDICTS[self.phase(key, at)]
        if verdict is Verdict.PROBE:
            self._probes[key] = at
        return verdict

    def parked_until(self, key: str, at: int) -> int:
        """When a row that is parked at `at` is due again."""
        probing_since = self._probes.get(key)
        if probing_since is None:
            return max(at + 1, self._by_key[key].until)
        return at + max(PROBE_PARK_MS, at - probing_since)

    def resulted(self, key: str, at: int, *, alive: bool, probe: bool) -> bool:
        """An attempt's result. True when it opened the breaker, so that what is queued must be parked."""
        if alive and not probe and key not in self._by_key:
            return False  # as nearly always: a sink that works goes on working
        before = self._by_key.get(key, core.NEW)
        after = core.resulted(before, alive=alive, probe=probe, at=at, settings=self._settings)
        if probe:
            self._probes.pop(key, None)
        if after is before:
            return False
        if after.state is BreakerState.CLOSED and not after.failures:
            self._by_key.pop(key, None)
            if before.state is BreakerState.OPEN:
                log.info("event=breaker_closed key=%s", key)
        else:
            self._by_key[key] = after
        self._changed.add(key)
        return after.state is BreakerState.OPEN and after.openings > before.openings

    def probe_lost(self, key: str) -> None:
        """The probe ended without a result (its row was given back): the next claim is the probe."""
        self._probes.pop(key, None)

    def take_moves(self, at: int, among: Set[str] | None = None) -> tuple[BreakerMove, ...]:
        """Moves to publish with the next outcomes, those of the sink keys `among` or all; `put_back` them when the log
        refuses."""
        if not self._changed:
            return ()
        taken = self._changed if among is None else self._changed & among
        moves = tuple(BreakerMove(key, self._by_key.get(key, Breaker(at=at))) for key in taken)
        self._changed = set() if among is None else self._changed - among
        return moves

    def merge(self, stored: Mapping[str, Breaker]) -> None:
        """Take what a partition knows that has come to this node: of two entries the later stands."""
        for key, breaker in stored.items():
            known = self._by_key.get(key)
            if known is None or known.at < breaker.at:
                self._by_key[key] = breaker

    def tell_again(self) -> None:
        """Publish all that is known once more with the next outcomes: the partition that held it has gone elsewhere."""
        self._changed.update(self._by_key)

    def put_back(self, moves: tuple[BreakerMove, ...]) -> None:
        self._changed.update(move.key for move in moves)
