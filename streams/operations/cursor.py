"""Cursors of listings: the last key looked at, opaque to who carries it. Owns the text form; keys are the store's."""

from __future__ import annotations

import base64
import binascii


def encode(key: bytes) -> str:
    """URL-safe text of a key."""
    return base64.urlsafe_b64encode(key).rstrip(b"=").decode()


def decode(text: str) -> bytes | None:
    """The key of a cursor, None for a text that `encode` never made."""
    try:
        key = base64.b64decode(text.encode("ascii") + b"=" * (-len(text) % 4), altchars=b"-_", validate=True)
    except (ValueError, binascii.Error):
        return None
    return key if encode(key) == text else None
