"""Whether this worker is still a member of its group, as far as it can know: what it may begin depends on that.

A group gives the partitions of a member away that it has not heard of for a session's time, and tells it only when it
asks. A worker whose coordinator has gone, or whose process stood still, may therefore have lost its partitions long
ago: until the group has answered it again it begins nothing. Where it had to join again, tables that it has open may be
older than what another owner has done: then it begins nothing until the brokers were asked about each. Times are of the
sending of what was answered, since the group counts from no earlier moment. Owns that judgement, and what a coordinator
may take for its answers; who owns which partition is `owned.py`'s.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Callable
from typing import Any

from aiokafka.errors import GroupLoadInProgressError, RequestTimedOutError  # type: ignore[import-untyped]
from aiokafka.protocol.group import HeartbeatRequest, SyncGroupRequest  # type: ignore[import-untyped]

log = logging.getLogger("ankusa.kafka")

SESSION_S = 10.0
"""A worker that is not heard of for this long has lost its partitions: how soon the others take over from one that was
killed. Heartbeats go on in a thread of their own, so only a process that stands still that long loses them."""

HEARTBEAT_S = 2.0

BEGINS_S = 8.0
"""After the last heartbeat that was answered an attempt may begin for so long: what remains of the session is for its
request to be on its way."""

ANSWER_S = 4.0
"""What a coordinator has to answer a heartbeat, and a broker to say who coordinates. The client's own patience is that
of a join, forty seconds, in which a broker that hangs would cost the membership."""


class Membership:
    """One worker's. `heard` is called by the consumer's thread, `doubtful` by the event loop. `clock` gives seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._heard_s = -math.inf
        self._told = False
        self._confirmed = 0
        self.joins = 0
        """How often it has joined after a silence: what was owned before may have been another's."""

    def now_s(self) -> float:
        return self._clock()

    def heard(self, sent_s: float) -> None:
        """The group has answered, as to a member, what was sent at `sent_s`."""
        self._heard_s = max(self._heard_s, sent_s)

    def joined(self, sent_s: float) -> None:
        """The group has given this worker its partitions, when asked at `sent_s`."""
        if sent_s - self._heard_s > BEGINS_S:
            self.joins += 1
        self.heard(sent_s)

    def confirm(self, joins: int) -> None:
        """No table is open that was another's before there were `joins`, by the brokers' word."""
        self._confirmed = joins

    def doubtful(self) -> bool:
        """Whether the partitions may be another's by now, or their tables older than what another has done."""
        silent_s = self._clock() - self._heard_s
        doubtful = silent_s > BEGINS_S or self._confirmed != self.joins
        if doubtful is not self._told and self._heard_s > -math.inf:
            self._told = doubtful
            if doubtful:
                log.warning("event=group_silent after_ms=%d", silent_s * 1000)
            else:
                log.warning("event=group_heard")
        return doubtful


def follow(coordinator: Any, membership: Membership) -> None:
    """Let `membership` hear what the group answers through `coordinator`, aiokafka's.

    Two of its habits are undone. A coordinator that is still loading the group, as every new one does, is asked again:
    aiokafka takes that answer to a heartbeat for a fault, ends its heartbeats and waits for somebody to ask it why,
    which Faust never does. And neither a heartbeat nor the search for a coordinator waits longer than `ANSWER_S`.
    """
    send, look_up = coordinator._send_req, coordinator._client.coordinator_lookup

    async def send_heard(request: Any) -> Any:
        if not isinstance(request, (HeartbeatRequest, SyncGroupRequest)):
            return await send(request)
        beats = isinstance(request, HeartbeatRequest)
        sent_s = membership.now_s()
        try:
            response = await asyncio.wait_for(send(request), ANSWER_S if beats else None)
        except TimeoutError:
            coordinator.coordinator_dead()
            raise RequestTimedOutError("the group's coordinator does not answer") from None
        if beats and response.error_code == GroupLoadInProgressError.errno:
            raise GroupLoadInProgressError("the group's coordinator is loading the group")
        if response.error_code == 0:
            (membership.heard if beats else membership.joined)(sent_s)
        return response

    async def look_up_soon(*asked: Any) -> Any:
        try:
            return await asyncio.wait_for(look_up(*asked), ANSWER_S)
        except TimeoutError:
            raise RequestTimedOutError("a broker does not say who coordinates the group") from None

    coordinator._send_req = send_heard
    coordinator._client.coordinator_lookup = look_up_soon
