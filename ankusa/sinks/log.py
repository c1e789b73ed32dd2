"""The `log` sink: a delivery is one line on the logger `ankusa.sink.log` (spec 04). Not durable, never fails.

Writes the facts of the delivery as key=value; never the body, headers or keys.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, Self

from ankusa.sinks.contract import Delivery, Ok, OptionError, SinkResult

log = logging.getLogger("ankusa.sink.log")

_LEVELS = {"info": logging.INFO, "debug": logging.DEBUG}
_LOGGED = Ok("logged")


def parse_level(options: Mapping[str, Any]) -> int:
    """The one option, `level`: info (default) or debug. OptionError names what is wrong."""
    for name in options:
        if name != "level":
            raise OptionError(str(name), "unknown option of a log sink")
    level = options.get("level", "info")
    if not isinstance(level, str) or level not in _LEVELS:
        raise OptionError("level", f"must be one of {', '.join(_LEVELS)}")
    return _LEVELS[level]


class LogSink:
    """A built `log` sink."""

    type = "log"
    batching = False
    inline_max_bytes: int | None = None

    def __init__(self, level: int) -> None:
        self._level = level

    @classmethod
    def build(cls, options: Mapping[str, Any]) -> Self:
        return cls(parse_level(options))

    async def deliver(self, delivery: Delivery) -> SinkResult:
        """Log one line. One is what the sink is for, so its rate is the rate of deliveries."""
        log.log(
            self._level,
            "delivered id=%s source=%s tenant=%s size_bytes=%d attempt=%d replay_id=%s",
            delivery.id,
            delivery.source_id,
            delivery.tenant_id,
            len(delivery.body),
            delivery.attempt,
            delivery.replay_id or "-",
        )
        return _LOGGED

    async def close(self) -> None:
        """Nothing to release."""
