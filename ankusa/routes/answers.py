"""What the route store answers when it does not do what it was asked: values, one for each refusal of spec 07."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

Code = Literal["invalid_route", "invalid_ip_rules", "invalid_request"]


class Invalid(Struct, frozen=True):
    """What was given is wrong: `field` names where, `code` as what it was judged."""

    code: Code
    field: str
    message: str


class NotFound(Struct, frozen=True):
    """There is no such route."""


class Duplicate(Struct, frozen=True):
    """Another route has that id, or one of the methods at a path of the same shape."""

    conflicting_id: str


class TooMany(Struct, frozen=True):
    """The node has as many as it takes."""

    max_routes: int


Refused = Invalid | NotFound | Duplicate | TooMany
