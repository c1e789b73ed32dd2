"""The options of an `http` sink, checked: what may be written, its defaults, and the errors that name the field.

Owns the keys of spec 04 "HTTP". It judges no destination (`egress.py`) and opens nothing. No message here
quotes a value: URLs, header values and secrets may all be secret.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from msgspec import Struct
from pyreqwest.http import Url

from ankusa.sinks.contract import OptionError
from ankusa.sinks.http_headers import is_reserved, is_sendable
from ankusa.sinks.signing import signing_key

METHODS = ("post", "put", "patch")
MAX_TIMEOUT_MS = 3_600_000  # as the widest `dispatch.attempt_timeout_ms`
MAX_RESPONSE_BYTES = 16_777_216  # a full read of one is held in memory for each attempt that runs
_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")


class HttpOptions(Struct, frozen=True):
    """Checked options. `method` is upper-case, `headers` lower-cased by name, `keys` are signing keys in order."""

    url: str
    method: str = "POST"
    timeout_ms: int = 5_000
    headers: tuple[tuple[str, str], ...] = ()
    keys: tuple[bytes, ...] = ()
    max_response_bytes: int = 65_536


def parse_options(options: Mapping[str, Any]) -> HttpOptions:
    """Check the options of one sink entry. OptionError names the first that is wrong."""
    for name in options:
        if name not in ("url", "method", "timeout_ms", "headers", "secret", "max_response_bytes"):
            raise OptionError(str(name), "unknown option of an http sink")
    return HttpOptions(
        url=_url(options.get("url")),
        method=_method(options.get("method", "post")),
        timeout_ms=_integer(options, "timeout_ms", 5_000, 1, MAX_TIMEOUT_MS),
        headers=_headers(options.get("headers", {})),
        keys=_keys(options["secret"]) if "secret" in options else (),
        max_response_bytes=_integer(options, "max_response_bytes", 65_536, 0, MAX_RESPONSE_BYTES),
    )


def _url(value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise OptionError("url", "is required: an http:// or https:// URL")
    try:
        Url(value)
    except ValueError as error:
        raise OptionError("url", f"is not a URL: {error}") from None
    return value


def _method(value: Any) -> str:
    if not isinstance(value, str) or value.lower() not in METHODS:
        raise OptionError("method", f"must be one of {', '.join(METHODS)}")
    return value.upper()


def _integer(options: Mapping[str, Any], name: str, default: int, low: int, high: int) -> int:
    value = options.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise OptionError(name, f"must be a whole number from {low} to {high}")
    return value


def _headers(value: Any) -> tuple[tuple[str, str], ...]:
    if not isinstance(value, Mapping):
        raise OptionError("headers", "must map header names to values")
    headers: dict[str, str] = {}
    for name, content in value.items():
        if not isinstance(name, str) or not _TOKEN.fullmatch(name):
            raise OptionError("headers", f"{name!r} is not a header name")
        field, lower = f"headers.{name}", name.lower()
        if is_reserved(lower):
            raise OptionError(field, "is set by the sink itself")
        if lower in headers:
            raise OptionError(field, "is given twice, in different case")
        if not isinstance(content, str) or not is_sendable(content):
            raise OptionError(field, "must be text without line breaks or control characters")
        headers[lower] = content.strip(" \t")
    return tuple(headers.items())


def _keys(value: Any) -> tuple[bytes, ...]:
    secrets = value if isinstance(value, list | tuple) else [value]
    if not secrets:
        raise OptionError("secret", "an empty list signs nothing; leave the option out")
    keys = []
    for secret in secrets:
        if not isinstance(secret, str):
            raise OptionError("secret", "must be text, or a list of texts")
        try:
            keys.append(signing_key(secret))
        except ValueError as error:
            raise OptionError("secret", str(error)) from None
    return tuple(keys)
