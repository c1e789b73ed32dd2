"""The HMAC engine: one described scheme, checked over the raw body.

Owns `Scheme` (what a provider's documentation says, as a value), the engine that checks it, and the
scheme a `verify: {type: hmac}` section describes. The presets are values of `Scheme`, one file each.
It never decodes a body, reads a clock, or tells by its timing which secret or signature matched.
"""

from __future__ import annotations

import binascii
import hmac
import re
from typing import Literal

from msgspec import Struct

from ankusa.verify import contract
from ankusa.verify.contract import Failure, Headers, VerifySpecError, is_header_name
from ankusa.verify.secret import SecretDecode
from ankusa.verify.template import compile_template, render
from schemas.config import SignedParse, Verify

DEFAULT_TOLERANCE_SECONDS = 300
"""Five minutes either way: what Stripe, Slack and Standard Webhooks each recommend."""

MAX_SIGNATURES = 32
"""Signatures read from one header. A rotation sends two or three; without a bound a 64 KB header of
tiny ones would buy thousands of comparisons with one request."""

MAX_TIMESTAMP_DIGITS = 18
"""Digits of a timestamp in seconds: the most that surely fit 64 bits. Longer is no time of anything,
and is refused before it is parsed (Python's int is quadratic in the digits)."""


class HeaderNames(Struct, frozen=True):
    """Lower-cased names of the headers one spelling of a scheme uses."""

    signature: str
    timestamp: str | None = None
    id: str | None = None


class Scheme(Struct, frozen=True, kw_only=True):
    """One provider's way to sign.

    `headers`: its spellings, in order; the first whose signature header is present is the one checked.
    `signed`: the template over `{body}`, `{timestamp}`, `{id}`. `parse`: how signatures stand in their
    header, each behind `sig_prefix`: the whole value, `key=value` pairs joined by commas, or words
    joined by spaces. `timestamp_pair`: the key of the pair that carries the timestamp, if one does.
    """

    headers: tuple[HeaderNames, ...]
    signed: str
    hash: Literal["sha256", "sha512", "sha1"] = "sha256"
    encoding: Literal["hex", "base64"] = "hex"
    parse: SignedParse = "whole"
    sig_prefix: str = ""
    timestamp_pair: str | None = None
    secret_decode: SecretDecode = "raw"  # noqa: S105 - how a secret is written, not one

    @property
    def has_timestamp(self) -> bool:
        """Whether a hook of this scheme carries a timestamp to judge."""
        return self.timestamp_pair is not None or self.headers[0].timestamp is not None


class HmacVerifier:
    """A scheme with its keys. `tolerance_ms` is the greatest distance of a timestamp from `at`."""

    def __init__(self, scheme: Scheme, keys: tuple[bytes, ...], tolerance_ms: int) -> None:
        self._scheme = scheme
        self._template = compile_template(scheme.signed)
        self._uses_id = self._template.uses("id")
        self._has_timestamp = scheme.has_timestamp
        # Keyed once: a copy of a keyed hash skips the two key blocks, and feeding it in pieces spares a
        # copy of the body that hmac.digest() would need for the joined bytes.
        self._keyed = tuple(hmac.new(key, digestmod=scheme.hash) for key in keys)
        self._tolerance_ms = tolerance_ms

    def verify(self, headers: Headers, body: bytes, at: int) -> Failure | None:
        scheme = self._scheme
        for names in scheme.headers:
            value = headers.get(names.signature)
            if value:
                break
        else:
            return contract.MISSING_SIGNATURE
        if not value.isascii():
            return contract.MALFORMED_SIGNATURE

        timestamp = ""
        if self._has_timestamp:
            found = headers.get(names.timestamp) if names.timestamp else _pair(value, scheme.timestamp_pair)
            if not found:
                return contract.MISSING_TIMESTAMP
            failure = self._judge(found, at)
            if failure is not None:
                return failure
            timestamp = found

        signed_id = headers.get(names.id, "") if names.id else ""
        if self._uses_id:
            if not signed_id:
                return contract.MISSING_ID
            if not signed_id.isascii():
                return contract.MALFORMED_ID

        signatures = _signatures(value, scheme)
        if not signatures:
            return contract.MALFORMED_SIGNATURE
        before = render(self._template.before, timestamp, signed_id)
        after = render(self._template.after, timestamp, signed_id)
        return None if self._matches(before, body, after, signatures) else contract.SIGNATURE_MISMATCH

    def _judge(self, timestamp: str, at: int) -> Failure | None:
        """Whether `timestamp` (unix seconds, ASCII digits only) lies within the tolerance of `at`."""
        if len(timestamp) > MAX_TIMESTAMP_DIGITS or not (timestamp.isascii() and timestamp.isdigit()):
            return contract.MALFORMED_TIMESTAMP
        if abs(at - int(timestamp) * 1000) > self._tolerance_ms:
            return contract.TIMESTAMP_OUT_OF_TOLERANCE
        return None

    def _matches(self, before: bytes, body: bytes, after: bytes, signatures: list[str]) -> bool:
        """Whether any signature is any key's. Every pair is compared, so the time tells nothing."""
        matched = False
        for keyed in self._keyed:
            mac = keyed.copy()
            if before:
                mac.update(before)
            mac.update(body)
            if after:
                mac.update(after)
            if self._scheme.encoding == "hex":
                expected = mac.hexdigest()
            else:
                expected = binascii.b2a_base64(mac.digest(), newline=False).decode("ascii")
            # Compared as written, not decoded: a signature has one spelling that passes (lower-case hex,
            # padded base64), so there is no other to judge alike.
            for signature in signatures:
                matched |= hmac.compare_digest(expected, signature)
        return matched


def _signatures(value: str, scheme: Scheme) -> list[str]:
    """The signatures in a header value; empty when it has none of this scheme, or too many."""
    if scheme.parse == "whole":
        words = [value]
    elif scheme.parse == "csv_pairs":
        words = [word.strip(" \t") for word in value.split(",")]
    else:
        words = value.split(" ")
    prefix = scheme.sig_prefix
    found = [word[len(prefix) :] for word in words if word.startswith(prefix) and len(word) > len(prefix)]
    return found if len(found) <= MAX_SIGNATURES else []


def _pair(value: str, key: str | None) -> str | None:
    """The value of the first `key=value` pair of that key."""
    for word in value.split(","):
        name, _, text = word.strip(" \t").partition("=")
        if name == key:
            return text
    return None


def described(spec: Verify) -> Scheme:
    """The scheme that a `type: hmac` section describes. Raises VerifySpecError with the key that is wrong."""
    for field in ("signature_header", "signed"):
        if not getattr(spec, field):
            raise VerifySpecError(field, "is required with type hmac")
    template = compile_template(spec.signed or "")
    parse = spec.parse or "whole"
    in_pair = template.uses("timestamp") and spec.timestamp_header is None and parse == "csv_pairs"
    if template.uses("timestamp") and spec.timestamp_header is None and not in_pair:
        raise VerifySpecError("timestamp_header", "is required: signed uses {timestamp}")
    if template.uses("id") and spec.id_header is None:
        raise VerifySpecError("id_header", "is required: signed uses {id}")
    if spec.id_header is not None and not template.uses("id"):
        raise VerifySpecError("id_header", "has no use: signed does not contain {id}")
    _check_prefix(spec.sig_prefix or "", parse)
    names = HeaderNames(
        signature=_header_name(spec, "signature_header") or "",
        timestamp=_header_name(spec, "timestamp_header"),
        id=_header_name(spec, "id_header"),
    )
    return Scheme(
        headers=(names,),
        signed=spec.signed or "",
        hash=spec.hash or "sha256",
        encoding=spec.encoding or "hex",
        parse=parse,
        sig_prefix=spec.sig_prefix or "",
        timestamp_pair="t" if in_pair else None,
        secret_decode=spec.secret_decode or "raw",
    )


def _header_name(spec: Verify, field: str) -> str | None:
    name: str | None = getattr(spec, field)
    if name is not None and not is_header_name(name):
        raise VerifySpecError(field, "is not a header name")
    return None if name is None else name.lower()


def _check_prefix(prefix: str, parse: SignedParse) -> None:
    """A prefix that could never match is an error at load, not a source that refuses every hook."""
    if not prefix.isascii():
        raise VerifySpecError("sig_prefix", "must be ASCII")
    if parse == "csv_pairs" and not re.fullmatch(r"[^,=\s]+=", prefix):
        raise VerifySpecError("sig_prefix", 'is required with csv_pairs: the key of the signature, such as "v1="')
    if parse == "space_versions" and " " in prefix:
        raise VerifySpecError("sig_prefix", "must not contain a space with space_versions")
