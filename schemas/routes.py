"""Routes and ip rules of the route guard, as values (spec 02 "Route guard", spec 07 "Routes").

Owns shapes only: what a path or a CIDR may be is `ankusa/routes`'s. Times are unix ms; the API shows them as ISO 8601.
"""

from __future__ import annotations

from typing import Any, Literal

from msgspec import Struct

Action = Literal["allow", "deny"]


class IpRule(Struct, frozen=True, forbid_unknown_fields=True):
    """What happens to addresses of `cidr`, in its normal spelling."""

    action: Action
    cidr: str


class IpRules(Struct, frozen=True, forbid_unknown_fields=True):
    """The global rules: the first that holds the address decides, `default` where none does."""

    default: Action = "allow"
    rules: tuple[IpRule, ...] = ()


class Route(Struct, frozen=True):
    """A path pattern that may be posted to. `ip_rules`, when there are any, replace the global allow list.

    `metadata` is the operator's own JSON object.
    """

    id: str
    path: str
    methods: tuple[str, ...]
    enabled: bool
    ip_rules: tuple[IpRule, ...]
    metadata: dict[str, Any]
    inserted_at: int
    updated_at: int
