"""The listeners of a node beside the one for hooks: admin API, routes, claim-check gateway, for either host.

Owns which a configuration asks for, where each listens, and what is said of an address that cannot be had.
"""

from __future__ import annotations

import logging

from fastapi import FastAPI

from ankusa.claim_check.blobs import BlobStore
from ankusa.claim_check.reader import Reader
from ankusa.routes.store import RouteStore
from api.auth import Tokens
from api.claims import build_claims_app
from api.routes import build_routes_app
from api.serving import Listener, bind, serve
from schemas.config import Config

log = logging.getLogger("ankusa.listeners")


async def admin(app: FastAPI, config: Config) -> list[Listener]:
    """That of the admin API `app`, unless it is off. Raises OSError as all of these do, naming key and address."""
    ip, port = config.admin.ip, config.admin.port
    if not config.admin.enabled:
        return []
    if not config.admin.tokens:
        log.warning(
            "event=admin_open address=%s:%d reason=no admin.tokens: whoever reaches it may do anything", ip, port
        )
    return [await _listen("admin", "admin.port", ip, port, app)]


async def gateway(blobs: BlobStore, config: Config) -> list[Listener]:
    """That of the claim-check gateway, in the role `claim_check`."""
    if "claim_check" not in config.node.roles:
        return []
    app = build_claims_app(Reader(blobs))
    return [await _listen("claim_check", "claim_check.port", config.claim_check.ip, config.claim_check.port, app)]


async def routes(store: RouteStore, tokens: Tokens, config: Config) -> Listener:
    """That of the routes in `store`."""
    at = config.routes.admin
    return await _listen("routes", "routes.admin.port", at.ip, at.port, build_routes_app(store, tokens))


async def _listen(name: str, key: str, ip: str, port: int, app: FastAPI) -> Listener:
    try:
        bound = bind(ip, port)
    except OSError as error:
        raise OSError(error.errno, f"{key}: cannot listen on {ip}:{port}: {error.strerror}") from error
    listener = await serve(app, bound)
    log.info("event=listening listener=%s address=%s:%d", name, ip, listener.port)
    return listener
