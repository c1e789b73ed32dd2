"""The OpenAPI document: what is served, and nothing the server would not answer.

Owns the corrections to what the framework generates from the routes: refusals have our shape, and 422 never happens.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from fastapi import APIRouter, FastAPI
from fastapi.openapi.utils import get_openapi
from fastapi.routing import APIRoute
from pydantic import BaseModel

from schemas.api import Error

_DESCRIPTIONS = {
    400: "A parameter or the body is wrong; `field` names it",
    401: "No token, or an unknown one",
    403: "Outside the token's scopes",
    404: "There is no such thing, or it is another tenant's",
    409: "Not in this state, or not on this node",
    413: "The body is over `limit` bytes",
    429: "Too many unfinished replays",
    503: "The store cannot answer now",
}
_FRAMEWORK_MODELS = ("HTTPValidationError", "ValidationError")


def answers(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """The `responses` of a route that may refuse with these statuses."""
    content = {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}
    return {status: {"description": _DESCRIPTIONS[status], "content": content} for status in statuses}


def takes(model: type[BaseModel]) -> dict[str, Any]:
    """The `openapi_extra` of a route that reads its JSON body itself. The model must be flat."""
    schema = model.model_json_schema()
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}


def document(app: FastAPI) -> dict[str, Any]:
    """The app's OpenAPI document."""
    made = get_openapi(title=app.title, version=app.version, description=app.description, routes=app.routes)
    for operations in made["paths"].values():
        for operation in operations.values():
            operation["responses"].pop("422", None)
    models = made["components"]["schemas"]
    for name in _FRAMEWORK_MODELS:
        models.pop(name, None)
    models["Error"] = Error.model_json_schema()
    return made


def methods(routers: Iterable[APIRouter]) -> dict[str, list[str]]:
    """The methods by path template, as an `Allow` header names them."""
    found: dict[str, set[str]] = {}
    for router in routers:
        for route in router.routes:
            assert isinstance(route, APIRoute)
            found.setdefault(route.path, set()).update(route.methods or ())
    return {path: [*sorted(names), "HEAD"] if "GET" in names else sorted(names) for path, names in found.items()}
