"""A signed hook with any one bit changed, or any part missing or malformed, fails and never raises."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ankusa.verify import Failure, build_verifier
from ankusa.verify.hmac import MAX_SIGNATURES
from schemas.config import Verify
from tests.unit.verify import signing
from tests.unit.verify.signing import AT, BODY, SIGNED, WHSEC, Signed

EACH = pytest.mark.parametrize("signed", SIGNED.values(), ids=SIGNED.keys())

REASONS = {
    "missing_signature",
    "missing_timestamp",
    "missing_id",
    "malformed_signature",
    "malformed_timestamp",
    "malformed_id",
    "timestamp_out_of_tolerance",
    "signature_mismatch",
}


def bit_flips(text: str) -> Iterator[str]:
    for position, char in enumerate(text):
        for bit in range(8):
            yield text[:position] + chr(ord(char) ^ (1 << bit)) + text[position + 1 :]


@EACH
def test_every_flipped_bit_of_the_body_fails(signed: Signed) -> None:
    verifier = build_verifier(signed.spec)
    for position in range(len(signed.body)):
        for bit in range(8):
            body = bytearray(signed.body)
            body[position] ^= 1 << bit
            failure = verifier.verify(signed.headers, bytes(body), AT)
            assert failure == Failure("signature_mismatch"), (position, bit)


@EACH
def test_every_flipped_bit_of_every_header_fails(signed: Signed) -> None:
    """Signature, timestamp and id, their prefixes and separators included."""
    verifier = build_verifier(signed.spec)
    for name, value in signed.headers.items():
        for changed in bit_flips(value):
            failure = verifier.verify(signed.headers | {name: changed}, signed.body, AT)
            assert failure is not None and failure.reason in REASONS, (name, changed)


@EACH
def test_a_cut_or_lengthened_body_fails(signed: Signed) -> None:
    verifier = build_verifier(signed.spec)
    for body in (b"", signed.body[:-1], signed.body + b"\n", signed.body + b"\0"):
        assert verifier.verify(signed.headers, body, AT) == Failure("signature_mismatch")


@EACH
def test_a_wrong_secret_fails(signed: Signed) -> None:
    secret = "whsec_AAECAwQFBgcICQoLDA0ODw==" if signed.spec.type == "standard_webhooks" else "wrong"
    verifier = build_verifier(msgspec.structs.replace(signed.spec, secret=secret))
    assert verifier.verify(signed.headers, signed.body, AT) == Failure("signature_mismatch")


MISSING = {
    "stripe-signature": "missing_signature",
    "x-hub-signature-256": "missing_signature",
    "webhook-signature": "missing_signature",
    "webhook-timestamp": "missing_timestamp",
    "webhook-id": "missing_id",
    "svix-signature": "missing_signature",
    "svix-timestamp": "missing_timestamp",
    "svix-id": "missing_id",
    "x-shopify-hmac-sha256": "missing_signature",
    "x-slack-signature": "missing_signature",
    "x-slack-request-timestamp": "missing_timestamp",
    "x-acme-signature": "missing_signature",
    "x-acme-timestamp": "missing_timestamp",
    "x-acme-id": "missing_id",
}
CASES = [(kind, name) for kind, signed in SIGNED.items() for name in signed.headers]


@pytest.mark.parametrize(("type", "name"), CASES)
def test_an_absent_or_empty_header_is_missing(type: str, name: str) -> None:
    signed = SIGNED[type]
    verifier = build_verifier(signed.spec)
    without = {key: value for key, value in signed.headers.items() if key != name}
    assert verifier.verify(without, signed.body, AT) == Failure(MISSING[name])
    assert verifier.verify(without | {name: ""}, signed.body, AT) == Failure(MISSING[name])


@pytest.mark.parametrize(("type", "name"), CASES)
def test_a_header_outside_ascii_is_malformed(type: str, name: str) -> None:
    signed = SIGNED[type]
    kind = MISSING[name].removeprefix("missing_")
    for value in (signed.headers[name] + "é", "\u0661\u0667\u0660\u0660", "\ud800", "\U0001f600"):
        failure = build_verifier(signed.spec).verify(signed.headers | {name: value}, signed.body, AT)
        assert failure == Failure(f"malformed_{kind}"), value


@pytest.mark.parametrize(
    "timestamp", ["-1700000000", "+1700000000", " 1700000000", "1700000000.0", "1_700_000_000", "17e8", "x", "9" * 19]
)
def test_a_timestamp_that_is_not_plain_digits_is_malformed(timestamp: str) -> None:
    signed = SIGNED["slack"]
    headers = signed.headers | {"x-slack-request-timestamp": timestamp}
    assert build_verifier(signed.spec).verify(headers, BODY, AT) == Failure("malformed_timestamp")


@pytest.mark.parametrize("timestamp", ["0", "1", "9" * 18, "1700000000000"])
def test_a_timestamp_of_another_age_or_unit_is_out_of_tolerance(timestamp: str) -> None:
    signed = SIGNED["slack"]
    headers = signed.headers | {"x-slack-request-timestamp": timestamp}
    assert build_verifier(signed.spec).verify(headers, BODY, AT) == Failure("timestamp_out_of_tolerance")


def test_a_million_digits_are_refused_unread() -> None:
    signed = SIGNED["stripe"]
    header = "t=" + "9" * 1_000_000 + "," + signed.headers["stripe-signature"]
    assert build_verifier(signed.spec).verify({"stripe-signature": header}, BODY, AT) == Failure("malformed_timestamp")


def test_stripe_without_a_timestamp_pair() -> None:
    signed = SIGNED["stripe"]
    header = signed.headers["stripe-signature"].split(",")[1]
    assert build_verifier(signed.spec).verify({"stripe-signature": header}, BODY, AT) == Failure("missing_timestamp")


@pytest.mark.parametrize("value", ["sha256=", "sha1=abc", "757107ea", "sha256", " sha256=00", "SHA256=00"])
def test_a_signature_without_its_prefix_is_malformed(value: str) -> None:
    verifier = build_verifier(Verify(type="github", secret="s"))
    assert verifier.verify({"x-hub-signature-256": value}, BODY, AT) == Failure("malformed_signature")


def test_only_lower_case_hex_and_canonical_base64_pass() -> None:
    github, shopify = SIGNED["github"], SIGNED["shopify"]
    upper = {"x-hub-signature-256": "sha256=" + github.headers["x-hub-signature-256"][7:].upper()}
    assert build_verifier(github.spec).verify(upper, BODY, AT) == Failure("signature_mismatch")
    value = shopify.headers["x-shopify-hmac-sha256"]
    for other in (value.rstrip("="), value + "=", value + "\n", value[:10] + "\n" + value[10:]):
        failure = build_verifier(shopify.spec).verify({"x-shopify-hmac-sha256": other}, BODY, AT)
        assert failure == Failure("signature_mismatch"), other


def test_more_signatures_than_the_bound_are_malformed() -> None:
    verifier = build_verifier(Verify(type="standard_webhooks", secret=WHSEC))
    headers = signing.standard_headers(WHSEC)
    good = headers["webhook-signature"]
    for padding, expected in ((MAX_SIGNATURES - 1, None), (MAX_SIGNATURES, Failure("malformed_signature"))):
        value = "v1,x " * padding + good
        assert verifier.verify(headers | {"webhook-signature": value}, BODY, AT) == expected


@EACH
@given(data=st.data())
def test_arbitrary_headers_and_bodies_never_raise_and_never_verify(signed: Signed, data: st.DataObject) -> None:
    verifier = build_verifier(signed.spec)
    value = st.one_of(
        st.text(alphabet=st.characters(), max_size=80),
        st.text(alphabet="tv01,= \t.;9afZ+/", max_size=80),
        st.sampled_from(sorted(signed.headers.values())),
    )
    headers = data.draw(st.dictionaries(st.sampled_from(sorted(signed.headers)), value))
    body = data.draw(st.one_of(st.binary(max_size=200), st.just(signed.body)))
    at = data.draw(st.one_of(st.just(AT), st.integers(-(2**70), 2**70)))
    failure = verifier.verify(headers, body, at)
    if failure is None:
        assert headers == signed.headers and body == signed.body
    else:
        assert failure.reason in REASONS


@given(st.binary(max_size=2000))
def test_the_signed_bytes_are_the_raw_body(body: bytes) -> None:
    github, slack = build_verifier(Verify(type="github", secret="s")), build_verifier(Verify(type="slack", secret="s"))
    assert github.verify(signing.github_headers("s", body), body, AT) is None
    assert slack.verify(signing.slack_headers("s", body), body, AT) is None
