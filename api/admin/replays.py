"""Routes of replay jobs: a translation of the operator's values, and nothing else (spec 05, spec 07)."""

from __future__ import annotations

from typing import NoReturn

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse

from ankusa.operations import Operations
from ankusa.replay.answers import (
    Finished,
    Invalid,
    NotFound,
    Plan,
    RoleNotEnabled,
    Started,
    StoreUnavailable,
    TooManyReplays,
)
from api.admin.context import Caller, Changer, Node, NoQuery, json_body
from api.admin.document import answers, takes
from api.admin.errors import Refusal, unavailable
from schemas import api as models
from schemas.api_requests import PatchRequest, StartRequest
from schemas.records import Job

Trouble = Finished | Invalid | NotFound | RoleNotEnabled | StoreUnavailable | TooManyReplays

router = APIRouter(tags=["replays"])


@router.post(
    "/v1/replays",
    status_code=202,
    response_model=models.Job,
    dependencies=[NoQuery],
    responses={
        202: {"description": "A new job"},
        200: {"model": models.Job | models.Plan, "description": "The job that this start already is, or a plan"},
        **answers(400, 401, 403, 409, 413, 429, 503),
    },
    openapi_extra=takes(StartRequest),
)
async def start(node: Node, caller: Changer, request: Request) -> JSONResponse:
    """Start a job, or with `dry_run: true` plan it. Repeating a start answers the job it already is."""
    found = await node.replays.start(await json_body(request), caller.changes)
    if isinstance(found, Started):
        return JSONResponse(_job(node, found.job).model_dump(), 202 if found.created else 200)
    if isinstance(found, Plan):
        return JSONResponse(models.Plan.model_validate(node.replays.to_json(found)).model_dump(), 200)
    return _refuse(found)


@router.get("/v1/replays", dependencies=[NoQuery], responses=answers(400, 401, 503))
async def jobs(node: Node, caller: Caller) -> models.Replays:
    """Every kept job, newest first."""
    found = node.replays.list(caller.sees)
    if isinstance(found, StoreUnavailable):
        _refuse(found)
    return models.Replays(replays=[_job(node, job) for job in found])


@router.get("/v1/replays/{job_id}", responses=answers(401, 404, 503))
async def job(node: Node, caller: Caller, job_id: str) -> models.Job:
    """One job."""
    found = node.replays.get(job_id, caller.sees)
    return _job(node, found) if isinstance(found, Job) else _refuse(found)


@router.patch(
    "/v1/replays/{job_id}",
    dependencies=[NoQuery],
    responses=answers(400, 401, 403, 404, 409, 413, 503),
    openapi_extra=takes(PatchRequest),
)
async def update(node: Node, caller: Changer, job_id: str, request: Request) -> models.Job:
    """Change a job's `state`, `rate` or `max_lag_ms`; the job after it."""
    found = await node.replays.update(job_id, await json_body(request), caller.changes)
    return _job(node, found) if isinstance(found, Job) else _refuse(found)


def _job(node: Operations, found: Job) -> models.Job:
    return models.Job.model_validate(node.replays.to_json(found))


def _refuse(trouble: Trouble) -> NoReturn:
    match trouble:
        case Invalid(field, message):
            raise Refusal(400, "invalid_filter", field=field[:64], message=message)
        case RoleNotEnabled(role):
            raise Refusal(409, "role_not_enabled", role=role)
        case TooManyReplays(limit):
            raise Refusal(429, "too_many_replays", limit=limit)
        case StoreUnavailable(reason):
            raise unavailable(reason)
        case NotFound():
            raise Refusal(404, "replay_not_found")
        case Finished():
            raise Refusal(409, "replay_finished")
