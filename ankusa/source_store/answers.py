"""What the source store answers when it does not do what it was asked: values, one for each refusal of spec 07."""

from __future__ import annotations

from msgspec import Struct


class Invalid(Struct, frozen=True):
    """The spec is wrong. `message` names every field at fault, `field` the first. No value is quoted that is secret."""

    field: str
    message: str


class Exists(Struct, frozen=True):
    """There is a source of this name already."""


class NotFound(Struct, frozen=True):
    """There is none."""


class ReadOnly(Struct, frozen=True):
    """The node's sources are those of its file."""


class TooMany(Struct, frozen=True):
    """The node has as many as it takes."""

    max_sources: int


class HasDeliveries(Struct, frozen=True):
    """Rows of the source are not settled: so many wait, and so many are claimed."""

    pending: int
    inflight: int


class Unavailable(Struct, frozen=True):
    """It cannot be done now; asking again goes on."""

    reason: str


Refused = Invalid | Exists | NotFound | ReadOnly | TooMany | HasDeliveries | Unavailable
