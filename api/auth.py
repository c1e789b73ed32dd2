"""Who may do what at the admin API: bearer tokens and their scopes (spec 07).

Owns the judgement, from a token to what its bearer may see and change; never reads a request. Tokens are kept as
SHA-256 digests only, and a presented one is compared with all of them in constant time.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable

from msgspec import Struct

from schemas.config import AdminToken

_TENANT = "tenant:"


class Access(Struct, frozen=True):
    """What a caller may do. `tenants` are those it owns; `admin` may everything, `read` see everything but bodies."""

    admin: bool = False
    read: bool = False
    tenants: frozenset[str] = frozenset()

    @property
    def sees(self) -> frozenset[str] | None:
        """The tenants whose things it may see, None for all."""
        return None if self.admin or self.read else self.tenants

    @property
    def changes(self) -> frozenset[str] | None:
        """The tenants whose things it may change, None for all, empty for none."""
        return None if self.admin else self.tenants

    def sees_body(self, tenant_id: str | None) -> bool:
        """Whether it may see the body of this tenant's hook; None is a hook whose tenant nobody knows any more."""
        return self.admin or tenant_id in self.tenants


EVERYTHING = Access(admin=True)


class Tokens:
    """The configured tokens. None configured means that everybody may everything: whether such a node may listen at
    all is judged when it starts."""

    def __init__(self, tokens: Iterable[AdminToken]) -> None:
        self._known: tuple[tuple[bytes, Access], ...] = ()
        self.reconfigure(tokens)

    def reconfigure(self, tokens: Iterable[AdminToken]) -> None:
        """Replace all tokens; the next request is judged by the new ones."""
        self._known = tuple((_digest_of(token), access(token.scopes)) for token in tokens)

    @property
    def open(self) -> bool:
        """Whether no token is asked for."""
        return not self._known

    def judge(self, presented: str | None) -> Access | None:
        """What the bearer of this token may do, None for a token that is missing or unknown."""
        if self.open:
            return EVERYTHING
        if presented is None:
            return None
        digest = hashlib.sha256(presented.encode()).digest()
        found: Access | None = None
        for known, granted in self._known:  # all of them, so that the time says nothing about which one came close
            if hmac.compare_digest(known, digest):
                found = granted
        return found


def access(scopes: Iterable[str]) -> Access:
    """Scopes as one value. Raises ValueError for a scope that does not exist (the configuration is checked before)."""
    admin = read = False
    tenants: set[str] = set()
    for scope in scopes:
        if scope == "admin":
            admin = True
        elif scope == "read":
            read = True
        elif scope.startswith(_TENANT) and len(scope) > len(_TENANT):
            tenants.add(scope.removeprefix(_TENANT))
        else:
            raise ValueError("a scope is admin, read or tenant:<id>")
    return Access(admin, read, frozenset(tenants))


def _digest_of(token: AdminToken) -> bytes:
    if token.sha256 is not None:
        return bytes.fromhex(token.sha256)
    if not token.token:
        raise ValueError("a token needs `token` or `sha256`")
    return hashlib.sha256(token.token.encode()).digest()
