"""Shopify: `x-shopify-hmac-sha256: <base64>` over the body, keyed by the app's client secret.

https://shopify.dev/docs/apps/build/webhooks/verify-deliveries: it signs no timestamp and no header, so the
topic, shop and webhook id that a sink reads are only as trustworthy as the connection.
"""

from __future__ import annotations

from ankusa.verify.hmac import HeaderNames, Scheme

SCHEME = Scheme(
    headers=(HeaderNames(signature="x-shopify-hmac-sha256"),),
    signed="{body}",
    encoding="base64",
)
