"""References: `urn:ankusa:claim:v1:<tenant>:<claim id>`, and where a claim id points.

A claim id is a ULID: when its pack was made (48 bits of unix ms), 64 random bits that name the pack, and the body's
position in the pack (16 bits). So a reference finds its bytes with nothing but the blob store, and nobody guesses one.
Owns the text forms; reads no clock and draws nothing. ("Claim id" is the wire's word; a claim of rows is something
else.)
"""

from __future__ import annotations

import re

PREFIX = "urn:ankusa:claim:v1:"

POSITION_BITS = 16
MAX_BODIES = 1 << POSITION_BITS
RANDOM_BITS = 64

_ALPHABET = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
_VALUES = {letter: value for value, letter in enumerate(_ALPHABET)}
_LENGTH = 26
_TIME_SHIFT = RANDOM_BITS + POSITION_BITS

_TENANT = re.compile(r"[A-Za-z0-9_-]{1,64}")
_CLAIM_ID = re.compile(r"[0-7][0-9A-HJKMNP-TV-Z]{25}")
# Its last 16 bits are 0: three letters of five bits, and the lowest of the letter before.
_PACK = re.compile(r"[0-7][0-9A-HJKMNP-TV-Z]{21}[02468ACEGJMPRTWY]000")


def pack_id(at: int, bits: int) -> str:
    """The id of a pack made at `at` (unix ms), with 64 random `bits`: the claim id of its body at position 0."""
    return _encode((at & 0xFFFF_FFFF_FFFF) << _TIME_SHIFT | bits << POSITION_BITS)


def claim_id(pack: str, position: int) -> str:
    return _encode(_decode(pack) | position)


def place_of(claim: str) -> tuple[str, int]:
    """`(pack, position)` of a claim id."""
    value = _decode(claim)
    position = value & (MAX_BODIES - 1)
    return _encode(value ^ position), position


def first_at(at: int) -> str:
    """The least id of a pack made at `at` (unix ms): those that sort before it are older."""
    return pack_id(at, 0)


def reference(tenant_id: str, pack: str, position: int) -> str:
    return f"{PREFIX}{tenant_id}:{claim_id(pack, position)}"


def is_tenant(text: str) -> bool:
    return _TENANT.fullmatch(text) is not None


def is_claim_id(text: str) -> bool:
    return _CLAIM_ID.fullmatch(text) is not None


def is_pack(text: str) -> bool:
    return _PACK.fullmatch(text) is not None


def _encode(value: int) -> str:
    return "".join(_ALPHABET[value >> shift & 31] for shift in range((_LENGTH - 1) * 5, -1, -5))


def _decode(text: str) -> int:
    value = 0
    for letter in text:
        value = value << 5 | _VALUES[letter]
    return value
