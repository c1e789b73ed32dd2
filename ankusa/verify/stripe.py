"""Stripe: `stripe-signature: t=<seconds>,v1=<hex>[,v1=<hex>]` over `{timestamp}.{body}`.

https://docs.stripe.com/webhooks#verify-manually: several v1 while a secret rolls, other schemes (v0) to
be ignored, five minutes of tolerance by default. The secret's `whsec_` is part of the key: Stripe signs
with the secret as shown, it is not base64. Unlike Stripe's library a timestamp too far ahead fails too.
"""

from __future__ import annotations

from ankusa.verify.hmac import HeaderNames, Scheme

SCHEME = Scheme(
    headers=(HeaderNames(signature="stripe-signature"),),
    signed="{timestamp}.{body}",
    parse="csv_pairs",
    sig_prefix="v1=",
    timestamp_pair="t",
)
