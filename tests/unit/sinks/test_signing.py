"""Standard Webhooks signatures, checked by the reference library and by a recorded vector."""

import base64
import json
import time

import pytest
from standardwebhooks import Webhook, WebhookVerificationError

from ankusa.sinks.signing import signature_headers, signing_key

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def test_the_published_vector() -> None:
    body = b'{"test": 2432232314}'
    headers = dict(signature_headers([signing_key(SECRET)], "msg_p5jXN8AQM9LWM0D4loKWxJek", 1_614_265_330_999, body))
    assert headers == {
        "webhook-id": "msg_p5jXN8AQM9LWM0D4loKWxJek",
        "webhook-timestamp": "1614265330",
        "webhook-signature": "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=",
    }


@pytest.mark.parametrize("body", [b"{}", b'"\xc3\xa9"', json.dumps({"a": "é" * 1000}).encode()])
@pytest.mark.parametrize("secret", [SECRET, "plain text secret", "sécret"])
def test_the_reference_library_verifies(body: bytes, secret: str) -> None:
    headers = dict(signature_headers([signing_key(secret)], "hook-1", now_ms(), body))
    theirs = secret if secret.startswith("whsec_") else base64.b64encode(secret.encode()).decode()
    Webhook(theirs).verify(body, headers)


def test_each_of_two_secrets_verifies_and_a_third_does_not() -> None:
    secrets = [SECRET, "whsec_" + base64.b64encode(b"old key of enough bytes").decode()]
    headers = dict(signature_headers([signing_key(s) for s in secrets], "hook-1", now_ms(), b"{}"))
    assert len(headers["webhook-signature"].split(" ")) == 2
    for secret in secrets:
        Webhook(secret).verify(b"{}", headers)
    with pytest.raises(WebhookVerificationError):
        Webhook("whsec_" + base64.b64encode(b"another").decode()).verify(b"{}", headers)


@pytest.mark.parametrize("change", ["body", "webhook-id", "webhook-timestamp", "webhook-signature"])
def test_one_changed_character_fails(change: str) -> None:
    at = now_ms()
    headers = dict(signature_headers([signing_key(SECRET)], "hook-1", at, b'{"a":1}'))
    body = b'{"a":2}' if change == "body" else b'{"a":1}'
    if change == "webhook-timestamp":
        headers[change] = str(at // 1000 - 1)
    elif change == "webhook-signature":
        headers[change] = headers[change].replace("v1,", "v1,A", 1)
    elif change == "webhook-id":
        headers[change] = "hook-2"
    with pytest.raises(WebhookVerificationError):
        Webhook(SECRET).verify(body, headers)


def test_the_body_is_signed_as_bytes() -> None:
    assert signature_headers([b"k"], "i", 0, b"\xff\x00") != signature_headers([b"k"], "i", 0, b"\xff")


@pytest.mark.parametrize("secret", ["", "whsec_", "whsec_not base64!", "whsec_é"])
def test_a_bad_secret_is_an_error_that_does_not_show_it(secret: str) -> None:
    with pytest.raises(ValueError, match=r"secret is empty|not base64") as caught:
        signing_key(secret)
    assert len(secret) < 7 or secret.removeprefix("whsec_") not in str(caught.value)
