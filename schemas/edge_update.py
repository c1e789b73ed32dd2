"""What an engine tells its edges beside the file they read: the sources and the routes that the API set up.

Owns the shape and its bytes. An update is whole (it replaces what the edge has) or a change of it.
"""

from __future__ import annotations

import msgspec
from msgspec import Struct

from schemas.config import ManagedSource
from schemas.routes import IpRules, Route


class EdgeUpdate(Struct, frozen=True, array_like=True):
    """Sources and routes by id, None for one that is gone. `ip_rules` None: as they were."""

    whole: bool
    sources: tuple[tuple[str, ManagedSource | None], ...] = ()
    routes: tuple[tuple[str, Route | None], ...] = ()
    ip_rules: IpRules | None = None


encode_update = msgspec.msgpack.Encoder().encode
decode_update = msgspec.msgpack.Decoder(EdgeUpdate).decode
