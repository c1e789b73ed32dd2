"""Signs hooks the way each provider does, written apart from the engine so that it checks and not echoes it."""

from __future__ import annotations

import base64
import hashlib
import hmac
from dataclasses import dataclass
from datetime import UTC, datetime

import stripe
from standardwebhooks import Webhook

from schemas.config import Verify

AT_SECONDS = 1_700_000_000
AT = AT_SECONDS * 1000
BODY = b'{"id":"evt_1","type":"charge.succeeded","data":{"object":{"amount":2000}}}'
KEY = b"0123456789abcdef0123456789abcdef"
WHSEC = "whsec_" + base64.b64encode(KEY).decode()


@dataclass(frozen=True)
class Signed:
    """One correctly signed hook and the section that verifies it."""

    spec: Verify
    headers: dict[str, str]
    body: bytes


def stripe_headers(secret: str, body: bytes = BODY, seconds: int = AT_SECONDS) -> dict[str, str]:
    header = stripe.WebhookSignature.generate_signature_header(body.decode(), secret, timestamp=seconds)
    return {"stripe-signature": header}


def standard_headers(secret: str | bytes, body: bytes = BODY, seconds: int = AT_SECONDS) -> dict[str, str]:
    signature = Webhook(secret).sign("msg_1", datetime.fromtimestamp(seconds, tz=UTC), body.decode())
    return {"webhook-id": "msg_1", "webhook-timestamp": str(seconds), "webhook-signature": signature}


def svix_headers(secret: str, body: bytes = BODY) -> dict[str, str]:
    return {name.replace("webhook-", "svix-"): value for name, value in standard_headers(secret, body).items()}


def github_headers(secret: str, body: bytes = BODY) -> dict[str, str]:
    return {"x-hub-signature-256": "sha256=" + hmac.digest(secret.encode(), body, hashlib.sha256).hex()}


def shopify_headers(secret: str, body: bytes = BODY) -> dict[str, str]:
    digest = hmac.digest(secret.encode(), body, hashlib.sha256)
    return {"x-shopify-hmac-sha256": base64.b64encode(digest).decode()}


def slack_headers(secret: str, body: bytes = BODY, seconds: int = AT_SECONDS) -> dict[str, str]:
    digest = hmac.digest(secret.encode(), b"v0:%d:%b" % (seconds, body), hashlib.sha256)
    return {"x-slack-signature": "v0=" + digest.hex(), "x-slack-request-timestamp": str(seconds)}


def described_headers(secret: str, body: bytes = BODY, seconds: int = AT_SECONDS) -> dict[str, str]:
    digest = hmac.digest(secret.encode(), b"%b|evt 1|%d" % (body, seconds), hashlib.sha512)
    return {
        "x-acme-signature": "v2:" + base64.b64encode(digest).decode(),
        "x-acme-timestamp": str(seconds),
        "x-acme-id": "evt 1",
    }


def described_spec(secret: str | tuple[str, ...]) -> Verify:
    return Verify(
        type="hmac",
        secret=secret,
        signature_header="X-Acme-Signature",
        signed="{body}|{id}|{timestamp}",
        hash="sha512",
        encoding="base64",
        sig_prefix="v2:",
        timestamp_header="X-Acme-Timestamp",
        id_header="X-Acme-Id",
    )


SIGNED = {
    "stripe": Signed(Verify(type="stripe", secret="whsec_abc"), stripe_headers("whsec_abc"), BODY),
    "github": Signed(Verify(type="github", secret="gh"), github_headers("gh"), BODY),
    "standard_webhooks": Signed(Verify(type="standard_webhooks", secret=WHSEC), standard_headers(WHSEC), BODY),
    "svix": Signed(Verify(type="standard_webhooks", secret=WHSEC), svix_headers(WHSEC), BODY),
    "shopify": Signed(Verify(type="shopify", secret="shpss_1"), shopify_headers("shpss_1"), BODY),
    "slack": Signed(Verify(type="slack", secret="sl"), slack_headers("sl"), BODY),
    "hmac": Signed(described_spec("acme"), described_headers("acme"), BODY),
}
