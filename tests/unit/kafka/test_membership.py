"""What a worker takes for an answer of its group, and when it doubts that its partitions are its own."""

from __future__ import annotations

import asyncio
import inspect
from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka.client import AIOKafkaClient  # type: ignore[import-untyped]
from aiokafka.consumer import group_coordinator  # type: ignore[import-untyped]
from aiokafka.errors import (  # type: ignore[import-untyped]
    GroupLoadInProgressError,
    IllegalGenerationError,
    RebalanceInProgressError,
    RequestTimedOutError,
    UnknownMemberIdError,
)
from aiokafka.protocol.group import (  # type: ignore[import-untyped]
    HeartbeatRequest,
    JoinGroupRequest,
    SyncGroupRequest,
)

from streams.kafka import membership
from streams.kafka.membership import BEGINS_S, SESSION_S, Membership, follow

BEAT = HeartbeatRequest("group", 1, "member")
SYNC = SyncGroupRequest("group", 1, "member", None, [])


class Coordinator:
    """aiokafka's, as far as it is followed. `answer` is an error code, None for none; it takes `takes_s`."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.answer: int | None = 0
        self.takes_s = 0.0
        self.dead = 0
        self._client = SimpleNamespace(coordinator_lookup=self._look_up)
        self.membership = Membership(lambda: self.now_s)
        follow(self, self.membership)

    async def _send_req(self, request: Any) -> Any:
        if self.answer is None:
            await asyncio.Event().wait()
        self.now_s += self.takes_s
        return SimpleNamespace(error_code=self.answer)

    async def _look_up(self, kind: Any, key: Any) -> int:
        if self.answer is None:
            await asyncio.Event().wait()
        return 7

    def coordinator_dead(self) -> None:
        self.dead += 1

    def ask(self, request: Any) -> Any:
        return asyncio.run(self._send_req(request))


@pytest.fixture
def group(monkeypatch: pytest.MonkeyPatch) -> Coordinator:
    monkeypatch.setattr(membership, "ANSWER_S", 0.01)
    return Coordinator()


def test_nothing_is_certain_before_the_group_has_answered(group: Coordinator) -> None:
    assert group.membership.doubtful()


@pytest.mark.parametrize("request_", [BEAT, SYNC], ids=["heartbeat", "sync"])
def test_an_answer_counts_from_when_it_was_asked_for(group: Coordinator, request_: Any) -> None:
    group.takes_s = 3.0
    group.ask(request_)
    group.membership.confirm(group.membership.joins)
    assert not group.membership.doubtful()
    group.now_s = 100.0 + BEGINS_S
    assert not group.membership.doubtful()
    group.now_s += 0.001
    assert group.membership.doubtful()
    group.takes_s = 0.0
    group.ask(request_)
    group.membership.confirm(group.membership.joins)
    assert not group.membership.doubtful()


def test_who_joined_after_a_silence_begins_when_the_brokers_were_asked(group: Coordinator) -> None:
    """Heartbeats of the new generation say nothing of tables that were open before."""
    membership_ = group.membership
    group.ask(SYNC)
    membership_.confirm(membership_.joins)
    asked = membership_.joins
    group.now_s += BEGINS_S + 0.001
    group.ask(SYNC)
    group.ask(BEAT)
    assert membership_.doubtful()
    membership_.confirm(asked)  # what was asked before the join
    assert membership_.doubtful()
    membership_.confirm(membership_.joins)
    assert not membership_.doubtful()


def test_a_rebalance_without_a_silence_holds_nothing_up(group: Coordinator) -> None:
    group.ask(SYNC)
    group.membership.confirm(group.membership.joins)
    group.now_s += BEGINS_S
    group.ask(SYNC)
    assert not group.membership.doubtful()


def test_a_silence_that_ends_with_a_heartbeat_needs_no_more(group: Coordinator) -> None:
    """A member of the current generation has lost nothing, and nobody would ask the brokers."""
    group.ask(BEAT)
    group.now_s += 60
    assert group.membership.doubtful()
    group.ask(BEAT)
    assert not group.membership.doubtful()


def test_an_answer_that_comes_after_the_session_proves_nothing(group: Coordinator) -> None:
    """A process that stood still reads it when it wakes."""
    group.takes_s = SESSION_S + 5
    group.ask(BEAT)
    assert group.membership.doubtful()


@pytest.mark.parametrize("error", [IllegalGenerationError, UnknownMemberIdError, RebalanceInProgressError])
def test_only_a_member_of_this_generation_has_been_answered(group: Coordinator, error: Any) -> None:
    group.answer = error.errno
    assert group.ask(BEAT).error_code == error.errno  # told on: the coordinator's client joins again
    assert group.membership.doubtful()


def test_the_answer_to_a_join_is_no_generation_yet(group: Coordinator) -> None:
    group.ask(JoinGroupRequest("group", 10_000, 30_000, "", None, "consumer", []))
    assert group.membership.doubtful()


def test_a_coordinator_that_loads_the_group_is_asked_again(group: Coordinator) -> None:
    """What `_do_heartbeat` catches: anything else ends the heartbeats."""
    group.answer = GroupLoadInProgressError.errno
    with pytest.raises(GroupLoadInProgressError):
        group.ask(BEAT)
    assert group.membership.doubtful()
    assert group.ask(SYNC).error_code == GroupLoadInProgressError.errno  # which a join knows how to take


def test_a_coordinator_that_hangs_is_looked_for_again(group: Coordinator) -> None:
    group.answer = None
    with pytest.raises(RequestTimedOutError):
        group.ask(BEAT)
    assert group.dead == 1
    with pytest.raises(RequestTimedOutError) as found:
        asyncio.run(group._client.coordinator_lookup("group", "workers"))
    assert found.value.retriable


def test_a_coordinator_that_is_found_is_told(group: Coordinator) -> None:
    assert asyncio.run(group._client.coordinator_lookup("group", "workers")) == 7


def test_silence_and_its_end_are_a_line_each(group: Coordinator, caplog: pytest.LogCaptureFixture) -> None:
    group.ask(BEAT)
    for passed_s in (1, 20, 30):
        group.now_s += passed_s
        group.membership.doubtful()
    group.ask(BEAT)
    group.membership.doubtful()
    assert [line.split()[0] for line in caplog.messages] == ["event=group_silent", "event=group_heard"]


def test_what_is_followed_is_in_the_installed_aiokafka() -> None:
    """An upgrade that moves one of these must say so here, not in production."""
    coordinator = group_coordinator.GroupCoordinator
    beat = inspect.getsource(coordinator._do_heartbeat)
    assert "resp = await self._send_req(request)" in beat
    assert "except Errors.KafkaError as err:" in beat
    assert "self._coordinator._send_req(request)" in inspect.getsource(group_coordinator)
    assert "self._client.coordinator_lookup(" in inspect.getsource(coordinator.ensure_coordinator_known)
    assert list(inspect.signature(coordinator._send_req).parameters) == ["self", "request"]
    assert list(inspect.signature(AIOKafkaClient.coordinator_lookup).parameters)[1:] == [
        "coordinator_type",
        "coordinator_key",
    ]
