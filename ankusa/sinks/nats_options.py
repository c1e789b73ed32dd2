"""The options of a `nats` sink, checked (spec 04). Opens nothing, and needs no NATS library."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from ankusa.redact import secret_values
from ankusa.sinks.options import MAX_TIMEOUT_MS, Options

_KEYS = ("servers", "subject", "tls", "auth", "publish_timeout_ms", "inline_max_bytes", "idle_timeout_ms")
_AUTH_KEYS = ("username", "password", "token", "nkey_seed", "jwt")
# A subject to publish to: tokens between dots, no wildcards. `$` begins the server's own subjects.
_SUBJECT = re.compile(r"(?!\$)[^\s.*>]+(?:\.[^\s.*>]+)*")
_SEED = re.compile(r"SU[A-Z2-7]{56}")


class NatsAuth(Struct, frozen=True):
    """One scheme: user and password, a token, or a seed, with a JWT for an account in operator mode."""

    username: str | None = None
    password: str | None = None
    token: str | None = None
    nkey_seed: str | None = None
    jwt: str | None = None

    def __repr__(self) -> str:
        return "NatsAuth(...)"


class NatsOptions(Struct, frozen=True):
    """Checked options. `servers` are host:port, `secrets` what must not be in a message."""

    servers: tuple[str, ...]
    subject: str
    tls: bool
    auth: NatsAuth
    publish_timeout_ms: int
    inline_max_bytes: int
    idle_timeout_ms: int
    secrets: tuple[str, ...]


def parse_options(options: Mapping[str, Any]) -> NatsOptions:
    """Check the options of one sink entry. OptionError names the first that is wrong."""
    given = Options("nats", options, _KEYS)
    servers = given.addresses("servers")
    subject = given.text("subject", max_chars=255)
    if not _SUBJECT.fullmatch(subject):
        raise given.error("subject", "must be a subject to publish to: no spaces, no wildcards, no empty token")
    auth = _auth(given.section("auth", _AUTH_KEYS))
    return NatsOptions(
        servers=servers,
        subject=subject,
        tls=given.flag("tls"),
        auth=auth,
        publish_timeout_ms=given.integer("publish_timeout_ms", 5_000, 1, MAX_TIMEOUT_MS),
        inline_max_bytes=given.inline_max_bytes(),
        idle_timeout_ms=given.idle_timeout_ms(),
        secrets=(*secret_values(options), *filter(None, (auth.nkey_seed, auth.jwt))),
    )


def _auth(given: Options | None) -> NatsAuth:
    if given is None:
        return NatsAuth()
    schemes = [name for name in ("username", "token", "nkey_seed") if given.has(name)]
    if len(schemes) != 1:
        raise given.error(schemes[1] if schemes else "username", "give one of username, token and nkey_seed")
    if schemes != ["username"] and given.has("password"):
        raise given.error("password", "goes with username only")
    if schemes != ["nkey_seed"] and given.has("jwt"):
        raise given.error("jwt", "goes with nkey_seed only")
    if schemes == ["username"]:
        return NatsAuth(username=given.text("username"), password=given.text("password"))
    if schemes == ["token"]:
        return NatsAuth(token=given.text("token"))
    seed = given.text("nkey_seed")
    if not _SEED.fullmatch(seed):
        raise given.error("nkey_seed", "is not a user's seed: SU and 56 characters of base32")
    return NatsAuth(nkey_seed=seed, jwt=given.optional_text("jwt", max_chars=65_536))
