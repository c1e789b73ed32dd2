"""What an edge hands to the log and what the log answers: the one thing an edge asks of it."""

from __future__ import annotations

from enum import IntEnum

import msgspec
from msgspec import Struct

from schemas.records import Envelope, Held


class Submission(Struct, frozen=True, gc=False):
    """A verified hook (`entry` is an Envelope) or one to hold in the pen (`entry` is a Held), with its body."""

    entry: Envelope | Held
    body: bytes


class AnswerStatus(IntEnum):
    """What became of one submission. The first three are durable; after any other, nothing was stored."""

    ACCEPTED = 1
    DUPLICATE = 2
    QUARANTINED = 3
    RATE_LIMITED = 4
    QUARANTINE_RATE_LIMITED = 5
    QUARANTINE_FULL = 6
    STORE_UNAVAILABLE = 7


class Answer(Struct, frozen=True, array_like=True, gc=False):
    """`id` is the hook's id (the first hook's for a duplicate); `retry_after_ms` is set where a wait helps;
    `reason` says in a few words why the store is unavailable."""

    status: AnswerStatus
    id: str = ""
    retry_after_ms: int = 0
    reason: str = ""


encode_answers = msgspec.msgpack.Encoder().encode
decode_answers = msgspec.msgpack.Decoder(list[Answer]).decode
