"""Slack: `x-slack-signature: v0=<hex>` over `v0:{timestamp}:{body}`, timestamp in its own header.

https://docs.slack.dev/authentication/verifying-requests-from-slack: the page publishes the worked example
that the tests use, and tells to refuse a timestamp more than five minutes from now.
"""

from __future__ import annotations

from ankusa.verify.hmac import HeaderNames, Scheme

SCHEME = Scheme(
    headers=(HeaderNames(signature="x-slack-signature", timestamp="x-slack-request-timestamp"),),
    signed="v0:{timestamp}:{body}",
    sig_prefix="v0=",
)
