"""Whether records flow: to one partition, or to the cluster as a whole. What nobody answers is refused at once.

A flow is free while records are acknowledged. With records on their way and no sign of life for `STALL_S` it has
stalled: no other record is let in behind them. When the last of them has failed, one is let in to try; its
acknowledgement frees the flow, and while it is on its way all others are refused. Pure: times are passed in, in seconds
of any steady clock.
"""

from __future__ import annotations

STALL_S = 1.0
"""From the last acknowledgement, or the first record after silence. A broker that works answers in milliseconds; its
pauses (a collection of garbage, a leader that moves in order) are shorter than this. At worst hooks are refused for a
moment that would have been taken late."""


class Flow:
    """The records on their way to one place."""

    __slots__ = ("_failing", "_since_s", "pending")

    def __init__(self) -> None:
        self.pending = 0
        self._since_s = 0.0
        self._failing = False

    def admits(self, now_s: float) -> bool:
        """Whether a record may be sent. The first after a failure always may: it is how one learns of the end."""
        return self.pending == 0 or not (self._failing or self.stalled(now_s))

    def stalled(self, now_s: float) -> bool:
        """Whether records have waited too long for any sign of life."""
        return self.pending > 0 and self.quiet_s(now_s) >= STALL_S

    def quiet_s(self, now_s: float) -> float:
        """Since the last acknowledgement, or the first record after silence."""
        return now_s - self._since_s

    @property
    def failing(self) -> bool:
        """Whether the last that was heard of it is bad."""
        return self._failing

    def sent(self, now_s: float) -> None:
        if self.pending == 0:
            self._since_s = now_s
        self.pending += 1

    def acked(self, now_s: float) -> None:
        self.pending -= 1
        self._since_s = now_s
        self._failing = False

    def failed(self, now_s: float) -> None:
        """One record was refused or given up. That of a flow that lives is its own matter."""
        if self.stalled(now_s):
            self._failing = True
        self.pending -= 1
