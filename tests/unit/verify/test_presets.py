"""Each provider's hooks verify: by its own library, or by the vector its documentation publishes."""

from __future__ import annotations

import base64
import hashlib
import hmac
from collections.abc import Callable

import pytest
import stripe

from ankusa.verify import Failure, build_verifier
from schemas.config import Verify
from tests.unit.verify import signing
from tests.unit.verify.signing import AT, AT_SECONDS, BODY, KEY, SIGNED, WHSEC, Signed

SLACK_BODY = (
    b"token=xyzz0WbapA4vBCDEFasx0q6G&team_id=T1DC2JH3J&team_domain=testteamnow&channel_id=G8PSS9T3V"
    b"&channel_name=foobar&user_id=U2CERLKJA&user_name=roadrunner&command=%2Fwebhook-collect&text="
    b"&response_url=https%3A%2F%2Fhooks.slack.com%2Fcommands%2FT1DC2JH3J%2F397700885554%2F96rGlfmibIGlgcZRskXaIFfN"
    b"&trigger_id=398738663015.47445629121.803a0bc887a14d10d2c447fce8b6703c"
)


@pytest.mark.parametrize("signed", SIGNED.values(), ids=SIGNED.keys())
def test_signed_hook_verifies(signed: Signed) -> None:
    assert build_verifier(signed.spec).verify(signed.headers, signed.body, AT) is None


def test_github_documented_vector() -> None:
    verifier = build_verifier(Verify(type="github", secret="It's a Secret to Everybody"))
    headers = {"x-hub-signature-256": "sha256=757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17"}
    assert verifier.verify(headers, b"Hello, World!", AT) is None
    assert verifier.verify(headers, b"Hello, World?", AT) == Failure("signature_mismatch")


def test_slack_documented_vector() -> None:
    verifier = build_verifier(Verify(type="slack", secret="8f742231b10e8888abcd99yyyzzz85a5"))
    headers = {
        "x-slack-request-timestamp": "1531420618",
        "x-slack-signature": "v0=a2114d57b48eac39b9ad189dd8316235a7b4a8d21a10bd27519666489c69b503",
    }
    assert verifier.verify(headers, SLACK_BODY, 1_531_420_618_000) is None
    assert verifier.verify(headers, SLACK_BODY, AT) == Failure("timestamp_out_of_tolerance")


def test_shopify_documented_rule_on_a_binary_body() -> None:
    """Shopify publishes the rule and no vector: base64 of HMAC-SHA256 over the raw body."""
    body = bytes(range(256))
    digest = base64.b64encode(hmac.digest(b"hush", body, hashlib.sha256)).decode()
    verifier = build_verifier(Verify(type="shopify", secret="hush"))
    assert verifier.verify({"x-shopify-hmac-sha256": digest}, body, AT) is None


def test_stripe_library_agrees() -> None:
    headers = signing.stripe_headers("whsec_abc")
    assert stripe.WebhookSignature.verify_header(BODY.decode(), headers["stripe-signature"], "whsec_abc")
    assert build_verifier(Verify(type="stripe", secret="whsec_abc")).verify(headers, BODY, AT) is None


def test_stripe_several_signatures_and_other_schemes() -> None:
    verifier = build_verifier(Verify(type="stripe", secret="whsec_abc"))
    timestamp, good = signing.stripe_headers("whsec_abc")["stripe-signature"].split(",")
    bad = "v1=" + "0" * 64
    for header in (
        f"{timestamp},{bad},{good}",
        f"{timestamp},{good},{bad}",
        f"{timestamp}, {good}, v0=anything",
        f"{good},{timestamp}",
    ):
        assert verifier.verify({"stripe-signature": header}, BODY, AT) is None, header
    only_v0 = f"{timestamp},{good.replace('v1', 'v0')}"
    assert verifier.verify({"stripe-signature": only_v0}, BODY, AT) == Failure("malformed_signature")


def test_standard_webhooks_several_signatures_and_versions() -> None:
    verifier = build_verifier(Verify(type="standard_webhooks", secret=WHSEC))
    headers = signing.standard_headers(WHSEC)
    good = headers["webhook-signature"]
    bad = "v1," + base64.b64encode(bytes(32)).decode()
    assert verifier.verify(headers | {"webhook-signature": f"{bad} v1a,xyz {good}"}, BODY, AT) is None
    asymmetric = headers | {"webhook-signature": good.replace("v1,", "v1a,")}
    assert verifier.verify(asymmetric, BODY, AT) == Failure("malformed_signature")


def test_svix_headers_are_read_only_without_webhook_ones() -> None:
    verifier = build_verifier(Verify(type="standard_webhooks", secret=WHSEC))
    both = signing.svix_headers(WHSEC) | signing.standard_headers("whsec_" + base64.b64encode(b"other").decode())
    assert verifier.verify(both, BODY, AT) == Failure("signature_mismatch")


@pytest.mark.parametrize(
    ("secret", "signer_key"),
    [
        (WHSEC, KEY),
        (WHSEC.rstrip("="), KEY),
        (base64.b64encode(KEY).decode(), KEY),  # the reference libraries read it so without whsec_, too
        (base64.b64encode(KEY).decode(), base64.b64encode(KEY)),  # and others sign with the text
        ("not base64!", b"not base64!"),
    ],
    ids=["whsec", "unpadded", "bare base64", "bare text that is base64", "bare text"],
)
def test_standard_webhooks_secret_forms(secret: str, signer_key: bytes) -> None:
    headers = signing.standard_headers(signer_key)
    assert build_verifier(Verify(type="standard_webhooks", secret=secret)).verify(headers, BODY, AT) is None


ROTATING: dict[str, tuple[str, str, Callable[[str], dict[str, str]]]] = {
    "stripe": ("whsec_new", "whsec_old", signing.stripe_headers),
    "github": ("new", "old", signing.github_headers),
    "standard_webhooks": (WHSEC, "whsec_" + base64.b64encode(b"old" * 10).decode(), signing.standard_headers),
    "shopify": ("new", "old", signing.shopify_headers),
    "slack": ("new", "old", signing.slack_headers),
    "hmac": ("new", "old", signing.described_headers),
}


@pytest.mark.parametrize(("type", "case"), ROTATING.items(), ids=ROTATING.keys())
def test_a_rotated_pair_both_verify(type: str, case: tuple[str, str, Callable[[str], dict[str, str]]]) -> None:
    new, old, sign = case
    spec = signing.described_spec((new, old)) if type == "hmac" else Verify(type=type, secret=(new, old))  # type: ignore[arg-type]
    verifier = build_verifier(spec)
    assert verifier.verify(sign(new), BODY, AT) is None
    assert verifier.verify(sign(old), BODY, AT) is None
    third = "whsec_" + base64.b64encode(b"third" * 5).decode() if type == "standard_webhooks" else "third"
    assert verifier.verify(sign(third), BODY, AT) == Failure("signature_mismatch")


def test_none_accepts_everything() -> None:
    assert build_verifier(Verify(type="none")).verify({}, b"\xff", 0) is None


@pytest.mark.parametrize("type", ["stripe", "slack", "standard_webhooks", "svix", "hmac"])
@pytest.mark.parametrize(
    ("off_ms", "verifies"),
    [(0, True), (300_000, True), (-300_000, True), (300_001, False), (-300_001, False)],
)
def test_tolerance_is_five_minutes_either_way(type: str, off_ms: int, verifies: bool) -> None:
    signed = SIGNED[type]
    failure = build_verifier(signed.spec).verify(signed.headers, signed.body, AT + off_ms)
    assert failure == (None if verifies else Failure("timestamp_out_of_tolerance"))


def test_tolerance_is_configurable() -> None:
    verifier = build_verifier(Verify(type="slack", secret="s", tolerance_seconds=10))
    headers = signing.slack_headers("s", seconds=AT_SECONDS)
    assert verifier.verify(headers, BODY, AT + 10_000) is None
    assert verifier.verify(headers, BODY, AT + 10_001) == Failure("timestamp_out_of_tolerance")


@pytest.mark.parametrize("type", ["github", "shopify"])
def test_a_scheme_without_timestamp_verifies_at_any_time(type: str) -> None:
    signed = SIGNED[type]
    assert build_verifier(signed.spec).verify(signed.headers, signed.body, 0) is None
