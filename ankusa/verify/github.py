"""GitHub: `x-hub-signature-256: sha256=<hex>` over the body.

https://docs.github.com/webhooks/using-webhooks/validating-webhook-deliveries: the page publishes the vector
that the tests use. It signs no timestamp. The older SHA-1 header `x-hub-signature` is not read.
"""

from __future__ import annotations

from ankusa.verify.hmac import HeaderNames, Scheme

SCHEME = Scheme(
    headers=(HeaderNames(signature="x-hub-signature-256"),),
    signed="{body}",
    sig_prefix="sha256=",
)
