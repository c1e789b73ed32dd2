"""The provider's event key of a hook (spec 02 "Dedupe"): what makes two posts one hook.

Owns where each provider puts its key and how one is read out of a body. It never stores a key, scopes it
to a tenant or judges a repeat; that is the fold's. A hook without a usable key is simply never a repeat.
"""

from __future__ import annotations

import hashlib
from typing import Any, Protocol

import msgspec
from msgspec import Raw

from ankusa.verify.contract import Headers, is_header_name
from schemas.config import Dedupe, DedupePreset, OrderingKey

MAX_KEY_BYTES = 512
"""Longest key kept as it is, in UTF-8. The key is part of an index key and of the idempotency key that is
shipped everywhere, and a sender chooses it: unbounded, one hook could write an index key of 8 MB. A longer
one becomes `sha256:` and 64 hex digits, which repeats exactly when the key does."""

MAX_PATH_SEGMENTS = 16
"""Segments of a JSON path. Each is one pass over what is left of the body: about 8 ms for 8 MB at worst."""

MAX_ARRAY_INDEX = 255
"""Largest array index in a JSON path; the elements up to it are the only ones looked at."""


class DedupeKey(Protocol):
    """One source's extraction, built once. Has no state; safe from any thread."""

    def extract(self, headers: Headers, body: bytes) -> str | None:
        """The key, not empty and at most MAX_KEY_BYTES in UTF-8, or None when the hook has none. Never raises."""


class DedupeSpecError(Exception):
    """A `dedupe` section is wrong. `field` is relative to it, such as "json"."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(f"{field}: {message}")
        self.field = field
        self.message = message


class HeaderKey:
    """The value of one request header, as sent."""

    def __init__(self, name: str) -> None:
        self._name = name.lower()

    def extract(self, headers: Headers, body: bytes) -> str | None:
        return _bounded(headers.get(self._name))


class JsonKey:
    """A value at a dotted path in a JSON body.

    A segment is an object's key, or, if it is all digits, also an array's index; a key that contains a
    dot cannot be written. The value may be a string, an integer or a boolean (`true`/`false`): null,
    fractions, arrays and objects are no key. Of a repeated object key the last value counts.
    """

    def __init__(self, path: str) -> None:
        segments = path.split(".")
        if "" in segments:
            raise DedupeSpecError("json", "has an empty segment")
        if len(segments) > MAX_PATH_SEGMENTS:
            raise DedupeSpecError("json", f"has more than {MAX_PATH_SEGMENTS} segments")
        self._steps = tuple(_Step(segment) for segment in segments)

    def extract(self, headers: Headers, body: bytes) -> str | None:
        found: bytes | Raw = body
        try:
            for step in self._steps:
                inner = step.into(found)
                if inner is None:
                    return None
                found = inner
            key = _scalar(found)
            # What a path steps over is checked as JSON but not as text. JSON is UTF-8, so one wrong byte
            # anywhere makes the body no JSON.
            if key is not None:
                body.decode()
            return _bounded(key)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return None  # not JSON, not of that shape, or nested without end


class _Step:
    """One segment: from a JSON document to the value in it, without building the rest as objects.

    Decoding an 8 MB body whole costs 75 ms and ten times its memory; skipping to one value costs 7 ms
    and none. msgspec skips what a struct does not name, so a segment is a struct of one field.
    """

    def __init__(self, segment: str) -> None:
        try:
            keyed = msgspec.defstruct("Keyed", [("value", Raw, None)], rename={"value": segment})
        except ValueError:  # a quote, a backslash or a control character
            raise DedupeSpecError("json", "has a character that a path cannot hold") from None
        self._decoders: tuple[tuple[msgspec.json.Decoder[Any], str], ...] = ((msgspec.json.Decoder(keyed), "value"),)
        if segment.isascii() and segment.isdigit():
            index = _index(segment)
            elements = [(f"at_{position}", Raw, None) for position in range(index + 1)]
            listed = msgspec.defstruct("Listed", elements, array_like=True)
            self._decoders += ((msgspec.json.Decoder(listed), f"at_{index}"),)

    def into(self, document: bytes | Raw) -> Raw | None:
        """The value, or None. Raises msgspec.DecodeError when `document` is not JSON, or neither object nor array."""
        for decoder, attribute in self._decoders[:-1]:
            try:
                value: Raw | None = getattr(decoder.decode(document), attribute)
            except msgspec.ValidationError:  # JSON, but of the other shape
                continue
            return value
        decoder, attribute = self._decoders[-1]
        last: Raw | None = getattr(decoder.decode(document), attribute)
        return last


def _index(segment: str) -> int:
    if len(segment) > len(str(MAX_ARRAY_INDEX)) or int(segment) > MAX_ARRAY_INDEX:
        raise DedupeSpecError("json", f"has an array index above {MAX_ARRAY_INDEX}")
    return int(segment)


def _scalar(found: bytes | Raw) -> str | None:
    """A JSON string, integer or boolean as a key: integers in decimal without sign of zero, `true`, `false`."""
    if bytes(memoryview(found)[:1]) in (b"{", b"["):  # no key, and may be most of the body
        return None
    value = msgspec.json.decode(found)
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    return value if isinstance(value, str) else None


def _bounded(key: str | None) -> str | None:
    if not key:
        return None
    encoded = key.encode()
    return key if len(encoded) <= MAX_KEY_BYTES else f"sha256:{hashlib.sha256(encoded).hexdigest()}"


_PRESETS: dict[DedupePreset, DedupeKey] = {
    # Unique per event and kept on redelivery, which is therefore a repeat while the TTL lasts.
    "github": HeaderKey("x-github-delivery"),
    "standard_webhooks": HeaderKey("webhook-id"),
    "svix": HeaderKey("svix-id"),
    # The delivery, not the event: one merchant action gives several topics the same x-shopify-event-id, so
    # as a key that would drop all but the first. Shopify names x-shopify-webhook-id for this purpose:
    # https://shopify.dev/docs/apps/build/webhooks/verify-deliveries
    "shopify": HeaderKey("x-shopify-webhook-id"),
    "stripe": JsonKey("id"),
}


def build_ordering(spec: OrderingKey) -> DedupeKey:
    """The extraction of an `ordering_key` section: one of header and json. Raises DedupeSpecError as `build_dedupe`."""
    if (spec.header is None) == (spec.json is None):
        raise DedupeSpecError("json", "give exactly one of header, json")
    return build_dedupe(Dedupe(header=spec.header, json=spec.json))


def build_dedupe(spec: Dedupe) -> DedupeKey:
    """The extraction of a `dedupe` section, which names exactly one of preset, header and json.

    Raises DedupeSpecError on "header" or "json" when that one is malformed, on "preset" when there are
    none or several.
    """
    if sum(value is not None for value in (spec.preset, spec.header, spec.json)) != 1:
        raise DedupeSpecError("preset", "give exactly one of preset, header, json")
    if spec.header is not None:
        if not is_header_name(spec.header):
            raise DedupeSpecError("header", "is not a header name")
        return HeaderKey(spec.header)
    if spec.json is not None:
        return JsonKey(spec.json)
    assert spec.preset is not None
    return _PRESETS[spec.preset]
