"""Standard Webhooks: `webhook-signature: v1,<base64>[ v1,<base64>]` over `{id}.{timestamp}.{body}`.

https://github.com/standard-webhooks/standard-webhooks/blob/main/spec/standard-webhooks.md: signatures are
separated by spaces, other identifiers (v1a, asymmetric) are not this scheme, secrets are `whsec_` and
base64. Svix sends the same under `svix-*`; a hook with both sets is judged by `webhook-*`.
"""

from __future__ import annotations

from ankusa.verify.hmac import HeaderNames, Scheme

SCHEME = Scheme(
    headers=(
        HeaderNames(signature="webhook-signature", timestamp="webhook-timestamp", id="webhook-id"),
        HeaderNames(signature="svix-signature", timestamp="svix-timestamp", id="svix-id"),
    ),
    signed="{id}.{timestamp}.{body}",
    encoding="base64",
    parse="space_versions",
    sig_prefix="v1,",
    secret_decode="whsec_or_raw",  # noqa: S106 - how a secret is written, not one
)
