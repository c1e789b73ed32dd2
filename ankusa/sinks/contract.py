"""The sink contract: what a sink is handed and what it may answer (spec 03 "Failure", spec 04).

A sink sends one delivery and says what became of it. It never retries, never touches a row and never
raises for an expected trouble; if it raises all the same, the dispatcher counts a transient failure.
"""

from __future__ import annotations

from typing import Literal, Protocol

from msgspec import Struct

ErrorClass = Literal["permanent", "retry_after", "transient", "timeout"]


class Delivery(Struct, frozen=True):
    """One attempt's payload: the hook as accepted, plus what this attempt adds.

    `headers` are the forwarded request headers, names lower-cased, in the order they came.
    `received_at` and `at` are unix ms; `at` is when this attempt starts. `replay_id` is the job that
    re-sends it, None for live traffic. `dedupe_key` is None when the source extracts none. `claim` is the claim check's
    reference to the body, set when the body is larger than the sink's `inline_max_bytes`: the sink sends it instead.
    """

    id: str
    source_id: str
    tenant_id: str
    received_at: int
    headers: tuple[tuple[str, str], ...]
    content_type: str | None
    body: bytes
    idempotency_key: str
    dedupe_key: str | None
    replay_id: str | None
    attempt: int
    at: int
    claim: str | None = None


class Ok(Struct, frozen=True):
    """The destination has it. `detail` is a short word for the history, such as "200"."""

    detail: str = "ok"


class Failed(Struct, frozen=True):
    """The destination does not have it, or did not say so.

    `error_class` decides what follows: permanent is dead at once; the others are retried by the policy.
    `retry_after_ms` is set for class `retry_after` only: the least time to wait.
    `reason` is short, stored and shown: no secrets, no bodies, at most 500 characters are kept.
    """

    error_class: ErrorClass
    reason: str
    retry_after_ms: int = 0


SinkResult = Ok | Failed


class SinkClient(Protocol):
    """A built sink: one destination of one source, with options checked.

    A `batching` sink gathers deliveries into requests of its own, and bounds both: its attempts take no slot.
    Of a body larger than `inline_max_bytes` it is handed the claim check's reference; None: it never wants one.
    """

    type: str
    batching: bool
    inline_max_bytes: int | None

    async def deliver(self, delivery: Delivery) -> SinkResult:
        """Send once. Bounded by its own timeout; cancelled by the dispatcher past `attempt_timeout_ms`."""

    async def close(self) -> None:
        """Release connections. Idempotent."""


class OptionError(Exception):
    """A sink option is wrong. `field` is relative to the sink entry, such as "url"."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(f"{field}: {message}")
        self.field = field
        self.message = message
