"""Standard Webhooks signatures on deliveries: `webhook-id`, `webhook-timestamp`, `webhook-signature` (spec 04).

Owns how a secret becomes a key and what is signed. It checks no incoming signature; that is `ankusa/verify`.
"""

from __future__ import annotations

import base64
import binascii
import hmac
from collections.abc import Sequence

PREFIX = "whsec_"


def signing_key(secret: str) -> bytes:
    """The key of a secret: `whsec_` and base64, or any other text as its UTF-8 bytes.

    ValueError, without the secret in it: empty, or `whsec_` with something that is not base64.
    """
    if not secret.startswith(PREFIX):
        if not secret:
            raise ValueError("a secret is empty")
        return secret.encode()
    encoded = secret.removeprefix(PREFIX)
    try:
        key = base64.b64decode(encoded + "=" * (-len(encoded) % 4), validate=True)
    except (binascii.Error, ValueError):
        raise ValueError("what follows whsec_ is not base64") from None
    if not key:
        raise ValueError("a secret is empty")
    return key


def signature_headers(keys: Sequence[bytes], hook_id: str, at: int, body: bytes) -> list[tuple[str, str]]:
    """The three headers of an attempt that starts `at` (unix ms): one `v1,` signature a key, in their order."""
    timestamp = str(at // 1000)
    signed = f"{hook_id}.{timestamp}.".encode() + body
    signatures = [base64.b64encode(hmac.digest(key, signed, "sha256")).decode() for key in keys]
    return [
        ("webhook-id", hook_id),
        ("webhook-timestamp", timestamp),
        ("webhook-signature", " ".join(f"v1,{signature}" for signature in signatures)),
    ]
