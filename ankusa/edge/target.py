"""The catch URL: which source a request path names.

Owns the grammar of `/webhooks/{source}` and `/webhooks/{tenant}/{source}`. It works on the raw bytes of
the path and normalises nothing: a source has one spelling, so what a proxy in front allowed or denied is
what is looked up. It does not know which sources exist.
"""

from __future__ import annotations

import re
from typing import Literal

from msgspec import Struct

Routing = Literal["path", "tenant_path"]

# A percent sign is in no name, so every encoded spelling (%2F, %2e%2e, %61 for "a") is not found; so are
# an empty segment, "..", a trailing slash, a query and anything outside ASCII.
_NAME = rb"[A-Za-z0-9_-]{1,64}"
_SOURCE = re.compile(rb"(" + _NAME + rb"(?:\." + _NAME + rb")?)")
_TENANT_SOURCE = re.compile(rb"(" + _NAME + rb")/(" + _NAME + rb")")


class Target(Struct, frozen=True):
    """A parsed catch URL.

    `name` is what stands in the URL: in path routing a source id, that is a static source's name or
    `tenant.name` of an API-managed one; in tenant_path routing a source's name. `tenant` is the URL's
    own, None in path routing.
    """

    tenant: str | None
    name: str


def parse_target(raw_path: bytes, prefix: str, routing: Routing) -> Target | None:
    """The source that `raw_path` names, or None when it is no catch URL.

    `raw_path` is the path as sent, without the query. `prefix` is `http.prefix`: it starts with a slash
    and does not end in one.
    """
    start = prefix.encode("ascii") + b"/"
    if not raw_path.startswith(start):
        return None
    if routing == "path":
        source = _SOURCE.fullmatch(raw_path, len(start))
        return None if source is None else Target(None, source[1].decode("ascii"))
    both = _TENANT_SOURCE.fullmatch(raw_path, len(start))
    return None if both is None else Target(both[1].decode("ascii"), both[2].decode("ascii"))
