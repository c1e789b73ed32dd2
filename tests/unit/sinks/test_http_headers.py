"""Which headers a delivery carries and in what spelling."""

from urllib.parse import unquote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ankusa.sinks.http_headers import HeaderPlan, encode_key, is_sendable
from tests.unit.sinks.deliveries import delivery

PLAN = HeaderPlan((), signed=False)


def test_all_of_them_in_order() -> None:
    plan = HeaderPlan((("authorization", "Bearer x"),), signed=False)
    assert plan.headers(delivery(replay_id="job-1")) == [
        ("user-agent", "GitHub-Hookshot/1"),
        ("x-github-event", "push"),
        ("content-type", "application/json"),
        ("x-ankusa-id", "01890a5d-ac96-774b-bcce-b302099a8057"),
        ("x-ankusa-source", "github"),
        ("x-ankusa-tenant", "acme"),
        ("x-ankusa-idempotency-key", "acme:github:evt_1"),
        ("x-ankusa-dedupe-key", "evt_1"),
        ("x-ankusa-replay-id", "job-1"),
        ("authorization", "Bearer x"),
    ]


def test_what_is_absent_is_not_sent() -> None:
    names = [name for name, _ in PLAN.headers(delivery(tenant_id="", dedupe_key=None, content_type=None, headers=()))]
    assert names == ["x-ankusa-id", "x-ankusa-source", "x-ankusa-idempotency-key"]


def test_framing_and_forged_headers_are_left_out() -> None:
    forged = [("host", "evil"), ("content-length", "1"), ("transfer-encoding", "chunked"), ("connection", "close"),
              ("expect", "100-continue"), ("upgrade", "h2c"), ("te", "trailers"), ("x-ankusa-id", "forged"),
              ("x-ankusa-anything", "forged"), ("content-type", "text/forged")]  # fmt: skip
    headers = PLAN.headers(delivery(headers=(*forged, ("x-kept", "1"))))
    assert "forged" not in str(headers) and "evil" not in str(headers)
    assert [h for h in headers if not h[0].startswith("x-ankusa-")] == [
        ("x-kept", "1"),
        ("content-type", "application/json"),
    ]


def test_a_configured_header_takes_the_place_of_all_forwarded_ones_of_its_name() -> None:
    plan = HeaderPlan((("x-event", "mine"), ("content-type", "text/plain")), signed=False)
    headers = plan.headers(delivery(headers=(("x-event", "1"), ("x-event", "2"))))
    assert [v for n, v in headers if n == "x-event"] == ["mine"]
    assert [v for n, v in headers if n == "content-type"] == ["text/plain"]


def test_repeated_forwarded_headers_stay_repeated() -> None:
    headers = PLAN.headers(delivery(headers=(("x-a", "1"), ("x-b", "2"), ("x-a", "3"))))
    assert headers[:3] == [("x-a", "1"), ("x-b", "2"), ("x-a", "3")]


def test_the_providers_signature_is_forwarded_only_by_a_sink_that_does_not_sign() -> None:
    forwarded = delivery(headers=(("webhook-id", "theirs"), ("webhook-signature", "v1,x")))
    assert ("webhook-id", "theirs") in PLAN.headers(forwarded)
    assert "theirs" not in str(HeaderPlan((), signed=True).headers(forwarded))


def test_an_empty_body_says_its_length() -> None:
    assert ("content-length", "0") in PLAN.headers(delivery(body=b""))
    assert "content-length" not in dict(PLAN.headers(delivery(body=b"x")))


def test_other_alphabets_go_as_they_came_and_controls_are_escaped() -> None:
    headers = dict(PLAN.headers(delivery(headers=(("x-a", "né 日本 100%"), ("x-b", "a\r\nx-c: 1\x00\x7f\udc80\tb")))))
    assert headers["x-a"] == "né 日本 100%"
    assert headers["x-b"] == "a%0D%0Ax-c: 1%00%7F%ED%B2%80\tb"


@pytest.mark.parametrize("key", ["evt_1", "a:b:c", "x/y+z==", '{"id":[1,2]}', "~!$&'()*,;<>?@^`|"])
def test_a_plain_key_is_sent_as_it_is(key: str) -> None:
    assert encode_key(key) == key


@pytest.mark.parametrize(
    ("key", "sent"),
    [
        ("é", "%C3%A9"),
        ("%C3%A9", "%25C3%25A9"),
        ("a b", "a%20b"),
        ("a\r\nb: c", "a%0D%0Ab:%20c"),
        ("\x00", "%00"),
        ("\x7f", "%7F"),
    ],
)
def test_an_odd_key_is_percent_encoded(key: str, sent: str) -> None:
    assert encode_key(key) == sent


@given(st.text(max_size=40))
def test_any_key_is_sendable_ascii_and_decodes_to_itself(key: str) -> None:
    sent = encode_key(key)
    assert sent.isascii() and is_sendable(sent) and sent == sent.strip()
    assert unquote(sent, errors="strict") == key
