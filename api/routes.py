"""The routes listener: the table that the edges' guard goes by, set up while they run (spec 07 "Routes").

One FastAPI app over the route store, on a port of its own, behind the admin API's tokens. Routes only translate. A
wrong method is answered 404 like a path that is not there.
"""

from __future__ import annotations

from importlib.metadata import version
from typing import Annotated, Any, NoReturn, cast

from fastapi import APIRouter, Depends, FastAPI, Query, Request, Response
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from ankusa.routes.answers import Duplicate, Invalid, NotFound, Refused, TooMany
from ankusa.routes.guard import Decision
from ankusa.routes.spec import shown
from ankusa.routes.store import RouteStore
from api.admin import cursors
from api.admin.context import Admin, NoQuery, Reader, json_body
from api.admin.document import answers, document, methods, takes
from api.admin.errors import Outermost, Refusal, bad_cursor, install
from api.auth import Tokens
from schemas import routes as values
from schemas.api_requests import PAGE_LIMIT
from schemas.api_routes import (
    DecidingRule,
    IpRules,
    IpRulesRequest,
    Route,
    RouteChanges,
    RoutePage,
    RouteQuery,
    RouteRequest,
    RoutesHealth,
    Tested,
    TestRequest,
)

FIELD_LIMIT = 200

router = APIRouter(tags=["routes"])


async def _store(request: Request) -> RouteStore:
    return cast(RouteStore, request.app.state.routes)


Store = Annotated[RouteStore, Depends(_store)]


def build_routes_app(store: RouteStore, tokens: Tokens) -> FastAPI:
    """The app. Its routes run on the event loop of the server, which must be the one that owns the node's log."""
    app = FastAPI(
        title="Ankusa routes",
        version=version("ankusa-server"),
        description="The routes and ip rules that decide what is taken on the hooks listener.",
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        redirect_slashes=False,
    )
    app.state.routes = store
    app.state.tokens = tokens
    routers = (router, _document_router(app))
    for one in routers:
        app.include_router(one)
    app.add_middleware(Outermost)
    install(app, methods(routers))
    app.add_exception_handler(HTTPException, _not_found)
    return app


async def _not_found(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)
    known = error.status_code in (404, 405)
    return JSONResponse({"error": "not_found" if known else "invalid_request"}, 404 if known else error.status_code)


def _document_router(app: FastAPI) -> APIRouter:
    made: dict[str, Any] = {}
    described = APIRouter(tags=["node"])

    @described.get("/openapi.json", responses=answers(401, 403))
    async def openapi(_: Reader) -> dict[str, Any]:
        """This document."""
        if not made:
            made.update(document(app))
        return made

    return described


@router.get("/health")
async def health(store: Store) -> RoutesHealth:
    """Answers while the process lives, with the count of routes. Needs no token."""
    return RoutesHealth(routes=len(store))


@router.get("/admin/routes", responses=answers(400, 401, 403))
async def routes(store: Store, _: Reader, query: Annotated[RouteQuery, Query()]) -> RoutePage:
    """A page of routes."""
    after = "" if query.cursor is None else cursors.decode(query.cursor)
    if after is None:
        raise bad_cursor()
    limit = min(max(query.limit, 1), PAGE_LIMIT)
    found, more = store.page(enabled=query.enabled, after=after, limit=limit)
    return RoutePage(
        routes=[_route(route) for route in found], next_cursor=cursors.encode(found[-1].id) if more else None
    )


@router.post(
    "/admin/routes",
    status_code=201,
    dependencies=[NoQuery],
    responses=answers(400, 401, 403, 409, 413, 503),
    openapi_extra=takes(RouteRequest),
)
async def create(store: Store, _: Admin, request: Request) -> Route:
    """A new route."""
    return _answered(await store.create(await json_body(request)))


@router.get("/admin/routes/{route_id}", dependencies=[NoQuery], responses=answers(400, 401, 403, 404))
async def route(store: Store, _: Reader, route_id: str) -> Route:
    """One route."""
    return _answered(store.get(route_id))


@router.put(
    "/admin/routes/{route_id}",
    dependencies=[NoQuery],
    responses={201: {"model": Route, "description": "A new route"}, **answers(400, 401, 403, 409, 413, 503)},
    openapi_extra=takes(RouteRequest),
)
async def replace(store: Store, _: Admin, route_id: str, request: Request, response: Response) -> Route:
    """Make or replace a route, whole."""
    found = await store.replace(route_id, await json_body(request))
    if not isinstance(found, tuple):
        _refuse(found)
    made, is_new = found
    response.status_code = 201 if is_new else 200
    return _route(made)


@router.patch(
    "/admin/routes/{route_id}",
    dependencies=[NoQuery],
    responses=answers(400, 401, 403, 404, 409, 413, 503),
    openapi_extra=takes(RouteChanges),
)
async def change(store: Store, _: Admin, route_id: str, request: Request) -> Route:
    """Change `enabled`, `methods`, `ip_rules` or `metadata` of a route."""
    return _answered(await store.patch(route_id, await json_body(request)))


@router.delete(
    "/admin/routes/{route_id}", status_code=204, dependencies=[NoQuery], responses=answers(400, 401, 403, 404, 503)
)
async def delete(store: Store, _: Admin, route_id: str) -> Response:
    """Take a route away: what it let through is denied from now on."""
    refused = await store.delete(route_id)
    return Response(status_code=204) if refused is None else _refuse(refused)


@router.get("/admin/ip-rules", dependencies=[NoQuery], responses=answers(400, 401, 403))
async def ip_rules(store: Store, _: Reader) -> IpRules:
    """The global rules."""
    return _rules(store.ip_rules)


@router.put(
    "/admin/ip-rules",
    dependencies=[NoQuery],
    responses=answers(400, 401, 403, 413, 503),
    openapi_extra=takes(IpRulesRequest),
)
async def set_ip_rules(store: Store, _: Admin, request: Request) -> IpRules:
    """Replace the global rules; as they are kept."""
    found = await store.set_ip_rules(await json_body(request))
    return _refuse(found) if isinstance(found, Invalid) else _rules(found)


@router.post(
    "/admin/routes/test",
    dependencies=[NoQuery],
    responses=answers(400, 401, 403, 413),
    openapi_extra=takes(TestRequest),
)
async def test(store: Store, _: Reader, request: Request) -> Tested:
    """What the guard decides on a request from `ip`; nothing is taken."""
    found = store.test(await json_body(request))
    if isinstance(found, Invalid):
        _refuse(found)
    return _tested(found)


def _answered(found: values.Route | Refused) -> Route:
    return _route(found) if isinstance(found, values.Route) else _refuse(found)


def _route(found: values.Route) -> Route:
    return Route.model_validate(shown(found))


def _rules(found: values.IpRules) -> IpRules:
    return IpRules.model_validate(
        {"default": found.default, "rules": [{"action": one.action, "cidr": one.cidr} for one in found.rules]}
    )


def _tested(found: Decision) -> Tested:
    rule, scope = found.rule, found.scope
    return Tested(
        decision="allow" if found.allowed else "deny",
        reason=found.reason,
        route_id=found.route_id,
        ip_rule=None
        if rule is None or scope is None
        else DecidingRule(action=rule.action, cidr=rule.cidr, scope=scope),
    )


def _refuse(refused: Refused) -> NoReturn:
    match refused:
        case Invalid(code, field, message):
            raise Refusal(400, code, field=field[:FIELD_LIMIT], message=message)
        case NotFound():
            raise Refusal(404, "not_found")
        case Duplicate(conflicting_id):
            raise Refusal(409, "duplicate_route", conflicting_id=conflicting_id)
        case TooMany(max_routes):
            raise Refusal(409, "too_many_routes", max_routes=max_routes)
