"""Routes of dead letters and of single hooks."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query

from ankusa.operations import BadCursor
from api.admin.context import Caller, Node, forbidden
from api.admin.document import answers
from api.admin.errors import Refusal, bad_cursor
from schemas.api import DeadLetters, Hook
from schemas.api_requests import DeadLetterQuery, HookQuery

router = APIRouter(tags=["hooks"])


@router.get("/v1/dlq", responses=answers(400, 401, 503))
async def dead_letters(node: Node, caller: Caller, query: Annotated[DeadLetterQuery, Query()]) -> DeadLetters:
    """Dead rows, newest death first, without bodies."""
    found = await node.dead_letters(query, caller.sees)
    if isinstance(found, BadCursor):
        raise bad_cursor()
    return found


@router.get("/v1/hooks/{hook_id}", responses=answers(400, 401, 403, 404, 503))
async def hook(node: Node, caller: Caller, hook_id: str, query: Annotated[HookQuery, Query()]) -> Hook:
    """One hook: metadata, the rows that are left, the history of every attempt, and its body for who may see it."""
    found = node.hook(hook_id, body=query.body, tenants=caller.sees)
    if found is None:
        raise Refusal(404, "hook_not_found")
    if query.body and not caller.sees_body(found.tenant_id):
        raise forbidden()
    return found
