"""An override of a rate limit whose topic does not answer."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from schemas.config import Config, RateLimit
from schemas.records import Topic
from streams.kafka.fleet_log import FleetLog, UnansweredError
from streams.kafka.limits import FleetLimits
from streams.kafka.log_producer import LogProducer
from tests.unit.kafka.test_fleet_log import FakeProducer
from tests.unit.store.entries import AT


def test_a_change_is_refused_in_time_and_holds_once_the_topic_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("streams.kafka.limits.ANSWER_S", 0.05)
    topics = {Topic.SOURCES: "sources"}
    limits = FleetLimits(Config(), FleetLog(cast(LogProducer, FakeProducer()), topics, lambda: AT))

    async def refused(change: Any) -> None:
        with pytest.raises(UnansweredError, match=r"sources\[0\] has not answered"):
            await change

    async def body() -> None:
        await refused(limits.set("acme", 5, 10))
        assert limits.admission.overrides == {}
        limits.take({"acme": RateLimit(rate=5, burst=10)})
        await refused(limits.drop("acme"))
        assert set(limits.admission.overrides) == {"acme"}

    asyncio.run(body())
