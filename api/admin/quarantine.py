"""Routes of the pen: list what is held, delete it."""

from __future__ import annotations

import logging
from typing import Annotated

from fastapi import APIRouter, Query

from ankusa.operations import BadCursor
from api.admin.context import Caller, Changer, Node
from api.admin.document import answers
from api.admin.errors import bad_cursor
from schemas.api import HeldHooks, Purged
from schemas.api_requests import HeldQuery, PurgeQuery

log = logging.getLogger("ankusa.admin")

router = APIRouter(tags=["quarantine"])


@router.get("/v1/quarantine", responses=answers(400, 401, 503))
async def held(node: Node, caller: Caller, query: Annotated[HeldQuery, Query()]) -> HeldHooks:
    """Held hooks, newest first, without bodies."""
    found = await node.held(query, caller.sees)
    if isinstance(found, BadCursor):
        raise bad_cursor()
    return found


@router.delete("/v1/quarantine", responses=answers(400, 401, 403, 503))
async def purge(node: Node, caller: Changer, query: Annotated[PurgeQuery, Query()]) -> Purged:
    """Delete held hooks, oldest first. `bytes` is what they counted against the pen's cap."""
    purged = await node.purge(query, caller.changes)
    log.info("event=quarantine_purged deleted=%d bytes=%d", purged.deleted, purged.bytes)
    return purged
