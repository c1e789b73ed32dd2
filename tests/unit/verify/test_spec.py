"""`verify` sections: what `hmac` can describe, and which key is named when a section is wrong."""

from __future__ import annotations

import base64
import hashlib
import hmac
from typing import Any

import pytest

from ankusa.verify import Failure, VerifySpecError, build_verifier
from ankusa.verify.secret import MAX_SECRETS
from schemas.config import Verify
from tests.unit.verify.signing import AT, AT_SECONDS, BODY

ACME: dict[str, Any] = {"type": "hmac", "secret": "s", "signature_header": "X-Sig", "signed": "{body}"}


@pytest.mark.parametrize("hash", ["sha256", "sha512", "sha1"])
@pytest.mark.parametrize("encoding", ["hex", "base64"])
def test_every_hash_and_encoding(hash: str, encoding: str) -> None:
    digest = hmac.digest(b"s", BODY, hash)
    written = digest.hex() if encoding == "hex" else base64.b64encode(digest).decode()
    verifier = build_verifier(Verify(**ACME, hash=hash, encoding=encoding))  # type: ignore[arg-type]
    assert verifier.verify({"x-sig": written}, BODY, AT) is None
    assert verifier.verify({"x-sig": written}, BODY + b" ", AT) == Failure("signature_mismatch")


def test_defaults_are_sha256_hex_of_the_whole_value() -> None:
    verifier = build_verifier(Verify(**ACME))
    assert verifier.verify({"x-sig": hmac.digest(b"s", BODY, hashlib.sha256).hex()}, BODY, 0) is None


def test_template_literals_percent_signs_and_text_outside_ascii() -> None:
    verifier = build_verifier(Verify(**ACME | {"signed": "%s ü:{body}:end%"}))
    digest = hmac.digest(b"s", "%s ü:".encode() + BODY + b":end%", hashlib.sha256)
    assert verifier.verify({"x-sig": digest.hex()}, BODY, AT) is None


def test_timestamp_in_a_pair_of_the_signature_header() -> None:
    spec = Verify(**ACME | {"signed": "{timestamp}:{body}", "parse": "csv_pairs", "sig_prefix": "h1="})
    digest = hmac.digest(b"s", b"%d:" % AT_SECONDS + BODY, hashlib.sha256).hex()
    verifier = build_verifier(spec)
    assert verifier.verify({"x-sig": f"t={AT_SECONDS},h1={digest}"}, BODY, AT) is None
    assert verifier.verify({"x-sig": f"h1={digest}"}, BODY, AT) == Failure("missing_timestamp")
    late = verifier.verify({"x-sig": f"t={AT_SECONDS},h1={digest}"}, BODY, AT + 301_000)
    assert late == Failure("timestamp_out_of_tolerance")


def test_csv_pairs_with_the_timestamp_in_its_own_header() -> None:
    keys = {"signed": "{timestamp}{body}", "parse": "csv_pairs", "sig_prefix": "v1=", "timestamp_header": "X-Time"}
    digest = hmac.digest(b"s", b"%d" % AT_SECONDS + BODY, hashlib.sha256).hex()
    verifier = build_verifier(Verify(**ACME | keys))
    assert verifier.verify({"x-sig": f"t=1,v1={digest}", "x-time": str(AT_SECONDS)}, BODY, AT) is None


def test_space_versions_without_prefix_take_every_word() -> None:
    verifier = build_verifier(Verify(**ACME | {"parse": "space_versions"}))
    digest = hmac.digest(b"s", BODY, hashlib.sha256).hex()
    assert verifier.verify({"x-sig": f"abc  {digest} "}, BODY, AT) is None
    assert verifier.verify({"x-sig": "   "}, BODY, AT) == Failure("malformed_signature")


def test_a_timestamp_header_that_is_not_signed_is_still_judged() -> None:
    verifier = build_verifier(Verify(**ACME | {"timestamp_header": "X-Time", "tolerance_seconds": 5}))
    headers = {"x-sig": hmac.digest(b"s", BODY, hashlib.sha256).hex()}
    assert verifier.verify(headers, BODY, AT) == Failure("missing_timestamp")
    assert verifier.verify(headers | {"x-time": str(AT_SECONDS)}, BODY, AT + 5_000) is None
    late = verifier.verify(headers | {"x-time": str(AT_SECONDS)}, BODY, AT + 5_001)
    assert late == Failure("timestamp_out_of_tolerance")


def test_whsec_base64_secret() -> None:
    verifier = build_verifier(Verify(**ACME | {"secret": "whsec_AQID", "secret_decode": "whsec_base64"}))
    assert verifier.verify({"x-sig": hmac.digest(b"\1\2\3", BODY, hashlib.sha256).hex()}, BODY, AT) is None
    raw = build_verifier(Verify(**ACME | {"secret": "whsec_AQID"}))
    assert raw.verify({"x-sig": hmac.digest(b"whsec_AQID", BODY, hashlib.sha256).hex()}, BODY, AT) is None


WRONG: list[tuple[str, dict[str, Any], str]] = [
    ("no secret", {"type": "github"}, "secret"),
    ("empty secret", {"type": "github", "secret": ""}, "secret"),
    ("blank secret", {"type": "github", "secret": " \n"}, "secret"),
    ("no secrets", {"type": "github", "secret": ()}, "secret"),
    ("one of the secrets empty", {"type": "github", "secret": ("a", "")}, "secret"),
    ("too many secrets", {"type": "github", "secret": ("a",) * (MAX_SECRETS + 1)}, "secret"),
    ("hmac without secret", {**ACME, "secret": None}, "secret"),
    ("whsec of nothing", {"type": "standard_webhooks", "secret": "whsec_"}, "secret"),
    ("whsec of zeros", {"type": "standard_webhooks", "secret": "whsec_AAAA"}, "secret"),
    ("whsec not base64", {"type": "standard_webhooks", "secret": "whsec_a*b"}, "secret"),
    ("whsec outside ASCII", {"type": "standard_webhooks", "secret": "whsec_ä"}, "secret"),
    ("whsec of one digit", {"type": "standard_webhooks", "secret": ("whsec_AQID", "whsec_A")}, "secret"),
    ("hmac whsec_base64 not base64", {**ACME, "secret": "~", "secret_decode": "whsec_base64"}, "secret"),
    ("none with a secret", {"type": "none", "secret": "s"}, "secret"),
    ("none with an empty secret", {"type": "none", "secret": ""}, "secret"),
    ("none with a tolerance", {"type": "none", "tolerance_seconds": 1}, "tolerance_seconds"),
    ("none with a description", {"type": "none", "signed": "{body}"}, "signed"),
    ("github with a tolerance", {"type": "github", "secret": "s", "tolerance_seconds": 1}, "tolerance_seconds"),
    ("shopify with a tolerance", {"type": "shopify", "secret": "s", "tolerance_seconds": 1}, "tolerance_seconds"),
    ("hmac with a useless tolerance", {**ACME, "tolerance_seconds": 1}, "tolerance_seconds"),
    ("no signature header", {**ACME, "signature_header": None}, "signature_header"),
    ("empty signature header", {**ACME, "signature_header": ""}, "signature_header"),
    ("signature header no token", {**ACME, "signature_header": "X Sig"}, "signature_header"),
    ("signature header with colon", {**ACME, "signature_header": "X-Sig:"}, "signature_header"),
    ("signature header outside ASCII", {**ACME, "signature_header": "X-Sïg"}, "signature_header"),
    ("timestamp header no token", {**ACME, "timestamp_header": "a\n"}, "timestamp_header"),
    ("empty timestamp header", {**ACME, "timestamp_header": ""}, "timestamp_header"),
    ("id header no token", {**ACME, "signed": "{id}{body}", "id_header": "a b"}, "id_header"),
    ("no signed", {**ACME, "signed": None}, "signed"),
    ("empty signed", {**ACME, "signed": ""}, "signed"),
    ("signed without body", {**ACME, "signed": "{timestamp}", "timestamp_header": "X-T"}, "signed"),
    ("signed with body twice", {**ACME, "signed": "{body}{body}"}, "signed"),
    ("unknown placeholder", {**ACME, "signed": "{url}{body}"}, "signed"),
    ("placeholder in capitals", {**ACME, "signed": "{Body}"}, "signed"),
    ("empty placeholder", {**ACME, "signed": "{}{body}"}, "signed"),
    ("stray opening brace", {**ACME, "signed": "{{body}"}, "signed"),
    ("stray closing brace", {**ACME, "signed": "{body}}"}, "signed"),
    ("timestamp from nowhere", {**ACME, "signed": "{timestamp}.{body}"}, "timestamp_header"),
    (
        "timestamp from nowhere in words",
        {**ACME, "signed": "{timestamp}.{body}", "parse": "space_versions"},
        "timestamp_header",
    ),
    ("id from nowhere", {**ACME, "signed": "{id}.{body}"}, "id_header"),
    ("id not signed", {**ACME, "id_header": "X-Id"}, "id_header"),
    ("pairs without the key", {**ACME, "parse": "csv_pairs"}, "sig_prefix"),
    ("pairs with half a key", {**ACME, "parse": "csv_pairs", "sig_prefix": "v1"}, "sig_prefix"),
    ("words with a space", {**ACME, "parse": "space_versions", "sig_prefix": "v1, "}, "sig_prefix"),
    ("prefix outside ASCII", {**ACME, "sig_prefix": "§"}, "sig_prefix"),
]
PRESET_KEYS: dict[str, Any] = {
    "signature_header": "x",
    "signed": "{body}",
    "hash": "sha256",
    "encoding": "hex",
    "sig_prefix": "",
    "timestamp_header": "x",
    "id_header": "x",
    "parse": "whole",
    "secret_decode": "raw",
}
WRONG += [
    (f"{preset} with {key}", {"type": preset, "secret": "whsec_AQID", key: value}, key)
    for preset in ("stripe", "github", "standard_webhooks", "shopify", "slack")
    for key, value in PRESET_KEYS.items()
]


@pytest.mark.parametrize(("keys", "field"), [case[1:] for case in WRONG], ids=[case[0] for case in WRONG])
def test_a_wrong_section_names_its_key(keys: dict[str, Any], field: str) -> None:
    with pytest.raises(VerifySpecError) as caught:
        build_verifier(Verify(**keys))
    assert caught.value.field == field
    assert str(caught.value) == f"{field}: {caught.value.message}"


def test_an_error_does_not_repeat_the_secret() -> None:
    with pytest.raises(VerifySpecError) as caught:
        build_verifier(Verify(type="standard_webhooks", secret=("whsec_AQID", "whsec_hush*hush")))
    assert "hush" not in str(caught.value) and "element 1" in caught.value.message
    assert caught.value.__cause__ is None
