"""The headers of a delivery over HTTP: which forwarded ones go along, ours, the configured ones, in what spelling.

Owns names that are reserved and characters that cannot be sent. Signing headers come from `signing.py`; which
request headers are forwarded at all was decided at the edge.
"""

from __future__ import annotations

import re
from urllib.parse import quote

from ankusa.sinks.contract import Delivery

# Framing and hop-by-hop: the client writes its own, and a second opinion about the length smuggles requests.
TRANSPORT = frozenset(
    {
        "host",
        "content-length",
        "transfer-encoding",
        "connection",
        "keep-alive",
        "proxy-connection",
        "proxy-authenticate",
        "proxy-authorization",
        "te",
        "trailer",
        "upgrade",
        "expect",
    }
)
SIGNING = frozenset({"webhook-id", "webhook-timestamp", "webhook-signature"})
_OURS = "x-ankusa-"

# A header value is any text but control characters (the tab is let through); a lone surrogate is no text.
_UNSENDABLE = re.compile("[\x00-\x08\x0a-\x1f\x7f\ud800-\udfff]")
_PLAIN_KEY = re.compile(r"[!-$&-~]*")
_KEY_SAFE = "".join(chr(code) for code in range(0x21, 0x7F) if chr(code) != "%")


def is_reserved(name: str) -> bool:
    """Whether a configured header may not have this name (lower-case)."""
    return name in TRANSPORT or name.startswith((_OURS, "webhook-"))


def is_sendable(value: str) -> bool:
    return not _UNSENDABLE.search(value)


def encode_key(key: str) -> str:
    """An idempotency or dedupe key as a header value.

    Visible ASCII without `%` stays as it is. Everything else (`%`, space, controls, non-ASCII as UTF-8) is
    percent-encoded, so any key goes through, two keys never become one, and percent-decoding gives it back.
    """
    return key if _PLAIN_KEY.fullmatch(key) else quote(key, safe=_KEY_SAFE, errors="surrogatepass")


def _escape(value: str) -> str:
    """Percent-encode only what cannot be sent; text in other alphabets goes out as UTF-8, as it came in."""
    return _UNSENDABLE.sub(lambda found: quote(found[0], safe="", errors="surrogatepass"), value)


class HeaderPlan:
    """What one sink adds to and takes from the headers of its deliveries, worked out once."""

    def __init__(self, configured: tuple[tuple[str, str], ...], *, signed: bool) -> None:
        names = {name for name, _ in configured}
        self._dropped = TRANSPORT | {"content-type"} | names | (SIGNING if signed else frozenset())
        self._content_type = "content-type" not in names
        self._configured = list(configured)

    def headers(self, delivery: Delivery) -> list[tuple[str, str]]:
        """Names and values to send, without the signature. A repeated forwarded header stays repeated."""
        dropped = self._dropped
        headers = [h for h in delivery.headers if h[0] not in dropped and not h[0].startswith(_OURS)]
        if delivery.content_type is not None and self._content_type:
            headers.append(("content-type", delivery.content_type))
        if _UNSENDABLE.search("\t".join([value for _, value in headers])):
            headers = [(name, _escape(value)) for name, value in headers]
        headers.append(("x-ankusa-id", delivery.id))
        headers.append(("x-ankusa-source", delivery.source_id))
        if delivery.tenant_id:
            headers.append(("x-ankusa-tenant", delivery.tenant_id))
        headers.append(("x-ankusa-idempotency-key", encode_key(delivery.idempotency_key)))
        if delivery.dedupe_key is not None:
            headers.append(("x-ankusa-dedupe-key", encode_key(delivery.dedupe_key)))
        if delivery.replay_id is not None:
            headers.append(("x-ankusa-replay-id", delivery.replay_id))
        if not delivery.body:
            headers.append(("content-length", "0"))  # the client leaves it out, and strict servers answer 411
        headers += self._configured
        return headers
