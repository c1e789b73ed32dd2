"""Secrets kept out of what people see: the configuration as shown, error messages, log values.

Owns what counts as a secret: by the name of a key, by the name of a header, and by shape (a password in a URL,
a token in its query or path, the marks of well-known kinds of keys). When in doubt it hides. It changes nothing
in place and never decides who may see a value.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from schemas.config import Config
from schemas.config_document import effective

HIDDEN = "[redacted]"

# Parts of a key's name (lower-case, `-` as `_`) that make its value a secret.
_SECRET_PARTS = (
    *(
        "secret",
        "token",
        "passw",
        "passphrase",
        "pwd",
        "authorization",
        "api_key",
        "apikey",
        "access_key",
        "nkey_seed",
        "jwt",
    ),
    *("private_key", "signing_key", "account_key", "sas_key", "credential", "cookie", "sasl"),
)
# A key with such a part whose value is a word of the configuration language.
_PLAIN_KEYS = frozenset({"secret_decode"})
# Header names get a wider net: a header configured for a destination is mostly there to log in.
_HEADER_PARTS = (*_SECRET_PARTS, "auth", "key", "sign", "session", "jwt", "cred", "pass")
_QUERY_PARTS = (*_HEADER_PARTS, "sig", "code", "otp")

# A secret shorter than this is not searched for in messages: it would be found inside ordinary words.
_SHORTEST_SEARCHED = 4

_SHAPES = re.compile(
    r"""
    -----BEGIN[ ][A-Z ]*PRIVATE[ ]KEY-----.*?(?:-----END[ ][A-Z ]*PRIVATE[ ]KEY-----|\Z)
    | \b(?i:bearer|basic|digest|negotiate)[ ]+(?=\S{6})\S+
    | \beyJ[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+(?:\.[A-Za-z0-9_-]*)?
    | \bwhsec_(?!base64\b)[A-Za-z0-9+/=_-]+
    | \b(?:sk|rk)_(?:live|test)_[A-Za-z0-9_]+
    | \b(?:gh[opsur]_|github_pat_|glpat-|shp(?:at|ss|ca|pa)_|xox[a-z]-|xapp-)[A-Za-z0-9_-]+
    | \b(?:AKIA|ASIA)[A-Z0-9]{12,}
    | \bAIza[A-Za-z0-9_-]{20,}
    """,
    re.VERBOSE | re.DOTALL,
)
# With a colon that starts no port, everything to the last `@`: a password may hold raw slashes and at signs.
_USERINFO = re.compile(r"(?<=://)(?:[^/?#@\s:]*:(?!\d{1,5}[/?#])\S*|[^/?#\s]*)@")
_URL_PATH = re.compile(r"(?<=://)([^/?#\s]*)(/[^?#\s]*)")
_ASSIGNED = re.compile(r"(^|[?&;#,\s])([^=?&;#,\s]+)=([^&;#,\s]*)")
_RUN = re.compile(r"[A-Za-z0-9]{16,}")


def redact(config: Config) -> dict[str, Any]:
    """The effective configuration as a document, secrets hidden: for `/v1/config` and `print-config`."""
    shown: dict[str, Any] = redact_tree(effective(config))
    return shown


def redact_tree(value: Any, key: str = "") -> Any:
    """A copy of a tree of mappings, lists and scalars with every secret hidden; `key` is the one it stands at."""
    if isinstance(value, Mapping):
        return {name: redact_tree(item, _inner(key, str(name))) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [redact_tree(item, key) for item in value]
    if value is None:  # that nothing is set is no secret, and often the fault looked for
        return None
    if _is_secret(key):
        return HIDDEN
    return redact_text(value) if isinstance(value, str) else value


def redact_text(text: str, secrets: Iterable[str] = ()) -> str:
    """`text` with everything of a secret's shape hidden, and every one of `secrets` wherever it stands."""
    for secret in sorted(secrets, key=len, reverse=True):
        if len(secret) >= _SHORTEST_SEARCHED:
            text = text.replace(secret, HIDDEN)
    text = _SHAPES.sub(HIDDEN, text)
    if "://" in text:
        text = _USERINFO.sub(f"{HIDDEN}@", text)
        text = _URL_PATH.sub(lambda match: match[1] + "/".join(map(_segment, match[2].split("/"))), text)
    return _ASSIGNED.sub(_assigned, text)


def secret_values(value: Any, key: str = "") -> Iterator[str]:
    """Every secret `redact_tree` would hide in a tree, so that a message can be cleared of it."""
    if isinstance(value, Mapping):
        for name, item in value.items():
            yield from secret_values(item, _inner(key, str(name)))
        if key == "tokens":  # a token written as a key is a mistake, and still a secret
            yield from map(str, value.keys() - _TOKEN_KEYS)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from secret_values(item, key)
    elif isinstance(value, str):
        if _is_secret(key):
            yield value
        yield from _pieces(value)


# The keys of one entry of `admin.tokens`. `sha256` is hidden there and nowhere else: of a body it is no secret.
_TOKEN_KEYS = frozenset({"token", "sha256", "scopes", "name"})


def _inner(outer: str, name: str) -> str:
    """The key to judge an inner value by: below a secret key everything is secret, below `headers` all are headers."""
    if outer == "tokens":
        return {"sha256": "token"}.get(name, name)
    if outer == "headers" and _has_part(name, _HEADER_PARTS):
        return "secret"
    return outer if _is_secret(outer) else name


def _is_secret(key: str) -> bool:
    return key not in _PLAIN_KEYS and _has_part(key, _SECRET_PARTS)


def _has_part(name: str, parts: tuple[str, ...]) -> bool:
    plain = name.lower().replace("-", "_")
    return any(part in plain for part in parts)


def _assigned(match: re.Match[str]) -> str:
    mark, name, value = match.groups()
    return f"{mark}{name}={HIDDEN if value and _has_part(name, _QUERY_PARTS) else _segment(value)}"


def _segment(text: str) -> str:
    """Hide a piece of a URL that looks drawn, not written: a webhook address often carries its key in the path."""
    return HIDDEN if any(map(_looks_drawn, _RUN.findall(text))) else text


def _looks_drawn(run: str) -> bool:
    digits, upper, lower = (sum(map(test, run)) for test in (str.isdigit, str.isupper, str.islower))
    return (digits >= 2 and upper + lower >= 2) or (upper >= 4 and lower >= 4)


def _pieces(text: str) -> Iterator[str]:
    """The parts of one string that `redact_text` hides, and a password also without its user's name."""
    yield from (match.group() for match in _SHAPES.finditer(text))
    for match in _USERINFO.finditer(text):
        userinfo = match.group()[:-1]
        yield userinfo
        yield from userinfo.split(":", 1)[1:]
    for match in _URL_PATH.finditer(text):
        yield from (part for part in match[2].split("/") if _segment(part) != part)
    for match in _ASSIGNED.finditer(text):
        if _assigned(match) != match.group():
            yield match[3]
