"""Sealing: what the node keeps of other people's secrets is encrypted at rest, with a key of the operator's.

AES-256-GCM, a random nonce each time, the name of what is sealed authenticated with it, so that one sealed text cannot
stand in another's place. Several keys may be given: the first seals, any opens. Owns the bytes of a sealed text; what
is sealed, and what may be kept without, is its caller's.

| | |
|---|---|
| plain | `0`, text |
| sealed | `1`, the key's mark (4), nonce (12), ciphertext and tag |
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

KEY_BYTES = 32
_PLAIN, _SEALED = b"\0", b"\1"
_MARK_BYTES, _NONCE_BYTES = 4, 12


class SealKeyError(ValueError):
    """A key is not one. The message never holds it."""


class UnsealError(Exception):
    """A text cannot be opened: sealed with a key that is not given, or damaged. `key_missing` tells which."""

    def __init__(self, message: str, *, key_missing: bool) -> None:
        super().__init__(message)
        self.key_missing = key_missing


class Seal:
    """The keys of one node. Without any, `seal` keeps the text as it is."""

    def __init__(self, keys: str | Sequence[str] | None) -> None:
        """Keys are 32 bytes in base64, either alphabet. Raises SealKeyError."""
        texts = [keys] if isinstance(keys, str) else list(keys or ())
        if keys is not None and not texts:
            raise SealKeyError("is an empty list; leave it out to have no key")
        raw = [_decode(text) for text in texts]
        self._ciphers = {_mark(key): _cipher(key) for key in raw}
        self._first = _mark(raw[0]) if raw else None

    @property
    def has_key(self) -> bool:
        return self._first is not None

    def seal(self, text: bytes, name: str) -> bytes:
        """`text` as it may be kept under `name`."""
        if self._first is None:
            return _PLAIN + text
        nonce = os.urandom(_NONCE_BYTES)
        return _SEALED + self._first + nonce + self._ciphers[self._first].encrypt(nonce, text, name.encode())

    def open(self, kept: bytes, name: str) -> bytes:
        """What `seal` was given under `name`. Raises UnsealError."""
        kind, rest = kept[:1], kept[1:]
        if kind == _PLAIN:
            return rest
        mark, nonce = rest[:_MARK_BYTES], rest[_MARK_BYTES : _MARK_BYTES + _NONCE_BYTES]
        if kind != _SEALED or len(nonce) < _NONCE_BYTES:
            raise UnsealError("is damaged", key_missing=False)
        cipher = self._ciphers.get(mark)
        if cipher is None:
            raise UnsealError("is sealed with a key that is not given", key_missing=True)
        from cryptography.exceptions import InvalidTag

        try:
            return cipher.decrypt(nonce, rest[_MARK_BYTES + _NONCE_BYTES :], name.encode())
        except InvalidTag:
            raise UnsealError("is damaged, or another's", key_missing=False) from None

    def is_current(self, kept: bytes) -> bool:
        """Whether sealing again would change nothing but the nonce."""
        if self._first is None:
            return kept[:1] == _PLAIN
        return kept[: 1 + _MARK_BYTES] == _SEALED + self._first


def _decode(text: str) -> bytes:
    """A key's bytes. Both alphabets are taken, with padding or without."""
    plain = text.strip().rstrip("=").translate(str.maketrans("-_", "+/"))
    try:
        key = base64.b64decode(plain + "=" * (-len(plain) % 4), validate=True)
    except (ValueError, binascii.Error):
        raise SealKeyError("is not base64; make one with `openssl rand -base64 32`") from None
    if len(key) != KEY_BYTES:
        raise SealKeyError(f"is {len(key)} bytes, not {KEY_BYTES}; make one with `openssl rand -base64 32`")
    return key


def _cipher(key: bytes) -> AESGCM:
    # A tenth of a second and nine megabytes that a node without a key does not pay.
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    return AESGCM(key)


def _mark(key: bytes) -> bytes:
    """What tells keys apart, and nothing of the key."""
    return hashlib.sha256(b"ankusa seal key" + key).digest()[:_MARK_BYTES]
