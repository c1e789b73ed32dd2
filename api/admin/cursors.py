"""Cursors of lists that are in order of a text: the last one listed, opaque to who carries it."""

from __future__ import annotations

import base64
import binascii


def encode(last: str) -> str:
    return base64.urlsafe_b64encode(last.encode()).rstrip(b"=").decode()


def decode(text: str) -> str | None:
    """The text of a cursor, None for one that `encode` never made."""
    try:
        last = base64.b64decode(text.encode("ascii") + b"=" * (-len(text) % 4), altchars=b"-_", validate=True).decode()
    except (ValueError, binascii.Error):
        return None
    return last if encode(last) == text else None
