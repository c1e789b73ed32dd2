"""The options of an http sink: defaults, ranges, and errors that name the field and show no value."""

from typing import Any

import pytest

from ankusa.sinks.contract import OptionError
from ankusa.sinks.http_options import parse_options

URL = "https://example.com/hooks"


def test_the_defaults() -> None:
    options = parse_options({"url": URL})
    assert (options.url, options.method, options.timeout_ms, options.max_response_bytes) == (URL, "POST", 5000, 65536)
    assert (options.headers, options.keys) == ((), ())


def test_everything_given() -> None:
    options = parse_options(
        {"url": URL, "method": "put", "timeout_ms": 1, "headers": {"X-A": " 1 ", "Authorization": "Bearer é"},
         "secret": ["whsec_AAAA", "raw"], "max_response_bytes": 0}
    )  # fmt: skip
    assert options.method == "PUT"
    assert options.headers == (("x-a", "1"), ("authorization", "Bearer é"))
    assert options.keys == (b"\x00\x00\x00", b"raw")


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({}, "url"),
        ({"url": ""}, "url"),
        ({"url": 5}, "url"),
        ({"url": "http://[bad"}, "url"),
        ({"url": "no url"}, "url"),
        ({"url": URL, "verb": "post"}, "verb"),
        ({"url": URL, 5: 1}, "5"),
        ({"url": URL, "method": "get"}, "method"),
        ({"url": URL, "method": None}, "method"),
        ({"url": URL, "timeout_ms": 0}, "timeout_ms"),
        ({"url": URL, "timeout_ms": True}, "timeout_ms"),
        ({"url": URL, "timeout_ms": 1.5}, "timeout_ms"),
        ({"url": URL, "timeout_ms": "5000"}, "timeout_ms"),
        ({"url": URL, "timeout_ms": 3_600_001}, "timeout_ms"),
        ({"url": URL, "timeout_ms": None}, "timeout_ms"),
        ({"url": URL, "max_response_bytes": -1}, "max_response_bytes"),
        ({"url": URL, "max_response_bytes": 16_777_217}, "max_response_bytes"),
        ({"url": URL, "headers": ["a"]}, "headers"),
        ({"url": URL, "headers": {"bad name": "1"}}, "headers"),
        ({"url": URL, "headers": {"": "1"}}, "headers"),
        ({"url": URL, "headers": {"é": "1"}}, "headers"),
        ({"url": URL, "headers": {1: "1"}}, "headers"),
        ({"url": URL, "headers": {"X-A": "hush\r\nb: c"}}, "headers.X-A"),
        ({"url": URL, "headers": {"X-A": "hush\x00"}}, "headers.X-A"),
        ({"url": URL, "headers": {"X-A": "hush\udc80"}}, "headers.X-A"),
        ({"url": URL, "headers": {"X-A": 5}}, "headers.X-A"),
        ({"url": URL, "headers": {"X-A": "hush", "x-a": "hush"}}, "headers.x-a"),
        ({"url": URL, "secret": ""}, "secret"),
        ({"url": URL, "secret": []}, "secret"),
        ({"url": URL, "secret": ["hush", ""]}, "secret"),
        ({"url": URL, "secret": ["whsec_hush!"]}, "secret"),
        ({"url": URL, "secret": None}, "secret"),
        ({"url": URL, "secret": 5}, "secret"),
    ],
)
def test_a_wrong_option_is_named_and_its_value_kept_quiet(options: dict[Any, Any], field: str) -> None:
    with pytest.raises(OptionError) as caught:
        parse_options(options)
    assert caught.value.field == field
    assert "hush" not in str(caught.value)


@pytest.mark.parametrize(
    "name",
    ["Host", "content-length", "Transfer-Encoding", "connection", "X-Ankusa-Id", "x-ankusa-new", "Webhook-Id",
     "webhook-anything", "expect", "te", "upgrade"],
)  # fmt: skip
def test_a_reserved_header_may_not_be_configured(name: str) -> None:
    with pytest.raises(OptionError) as caught:
        parse_options({"url": URL, "headers": {name: "1"}})
    assert caught.value.field == f"headers.{name}"
