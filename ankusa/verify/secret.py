"""HMAC keys out of configured secrets.

Owns the forms a secret is written in and the rule that none may be empty. It never logs, stores or
repeats a secret: an error names the element, not its value.
"""

from __future__ import annotations

import base64
import binascii
from typing import Literal

from ankusa.verify.contract import VerifySpecError

SecretDecode = Literal["raw", "whsec_base64", "whsec_or_raw"]
"""How a written secret becomes key bytes.

raw: the text itself, UTF-8. whsec_base64: base64, an optional `whsec_` in front dropped.
whsec_or_raw: with `whsec_` as whsec_base64; without, both readings are keys (see `_either`).
"""

_WHSEC = "whsec_"

MAX_SECRETS = 8
"""Secrets of one source. A rotation needs two; each more costs one HMAC of the body on every hook, two
when it is read both ways: about 6 ms each for an 8 MB body, so the worst hook stays under 100 ms of CPU."""


def keys(secret: str | tuple[str, ...] | None, decode: SecretDecode) -> tuple[bytes, ...]:
    """The key bytes of every secret, newest first, at least one. Raises VerifySpecError on field "secret"."""
    secrets = (secret,) if isinstance(secret, str) else secret or ()
    if not secrets:
        raise VerifySpecError("secret", "is required")
    if len(secrets) > MAX_SECRETS:
        raise VerifySpecError("secret", f"at most {MAX_SECRETS} secrets")
    found: list[bytes] = []
    for position, text in enumerate(secrets):
        where = "" if isinstance(secret, str) else f"element {position} "
        if not text.strip():
            raise VerifySpecError("secret", f"{where}is empty")
        try:
            decoded = _decoded(text, decode)
        except binascii.Error:
            raise VerifySpecError("secret", f"{where}is not base64") from None
        for key in decoded:
            # HMAC pads a short key with zero bytes, so a key of nothing but zeros is the empty key,
            # and an empty key verifies whatever anyone signs with it.
            if not key.strip(b"\0"):
                raise VerifySpecError("secret", f"{where}is empty once decoded")
        found.extend(decoded)
    return tuple(found)


def _decoded(text: str, decode: SecretDecode) -> tuple[bytes, ...]:
    if decode == "raw":
        return (text.encode(),)
    if decode == "whsec_base64" or text.startswith(_WHSEC):
        return (_base64(text.removeprefix(_WHSEC)),)
    return _either(text)


def _either(text: str) -> tuple[bytes, ...]:
    """Both readings of a secret without `whsec_`: the reference libraries take it as base64, other
    senders sign with its bytes, and the text alone does not tell. Either key is as secret as the text."""
    try:
        return (_base64(text), text.encode())
    except binascii.Error:
        return (text.encode(),)


def _base64(text: str) -> bytes:
    """Strict standard base64, its padding optional as in the reference libraries. Raises binascii.Error."""
    if not text.isascii():
        raise binascii.Error("not ASCII")
    return base64.b64decode(text + "=" * (-len(text) % 4), validate=True)
