"""Which request headers are decodable, and which of them travel on to the sinks."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ankusa.edge.forward import (
    AUTHENTICATION,
    FRAMING,
    HOP_BY_HOP,
    decode_headers,
    forward_names,
    forwarded,
)

NEVER = sorted(FRAMING | HOP_BY_HOP | {"host", "x-ankusa-id", "x-ankusa-", "x-ankusa-tenant"})


def test_decode_keeps_order_and_repeats_and_lowers_names() -> None:
    raw = [(b"X-B", b"1"), (b"x-a", b"Two Words"), (b"X-B", b""), (b"x-tab", b"a\tb"), (b"1", b"~")]
    assert decode_headers(raw) == [("x-b", "1"), ("x-a", "Two Words"), ("x-b", ""), ("x-tab", "a\tb"), ("1", "~")]
    assert decode_headers([(b"x-a", b"1"), (b"x-b", b"2")]) == [("x-a", "1"), ("x-b", "2")]
    assert decode_headers([]) == []


def test_decode_takes_utf8_outside_ascii() -> None:
    raw = [(b"x-name", "Jürgen \u00a0 \U0001f600 \u2028".encode())]
    assert decode_headers(raw) == [("x-name", "Jürgen \u00a0 \U0001f600 \u2028")]


BAD_VALUES = [
    b"J\xfcrgen",  # Latin-1
    b"\xff",
    b"\xc3",  # cut off
    b"\xc0\xaf",  # overlong
    b"\xed\xa0\x80",  # surrogate
    b"a\0b",
    b"a\r\nx-injected: 1",
    b"a\nb",
    b"\x1b[31m",
    b"\x7f",
    "\u0085".encode(),
    "\u009b".encode(),
]
BAD_NAMES = [b"", b"x y", b"x:", b"x\xc3\xa9", b"x\xe9", b"x\0", b"x\n", b"x(", b'"x"', b"x\x7f"]


@pytest.mark.parametrize("value", BAD_VALUES)
@pytest.mark.parametrize("before", [[], [(b"x-ok", b"1")], [(b"x-ok", "é".encode())]])
def test_an_undecodable_value(value: bytes, before: list[tuple[bytes, bytes]]) -> None:
    assert decode_headers([*before, (b"x-bad", value)]) is None
    assert decode_headers([(b"x-bad", value), *before]) is None


@pytest.mark.parametrize("name", BAD_NAMES)
def test_an_undecodable_name(name: bytes) -> None:
    assert decode_headers([(name, b"1")]) is None
    assert decode_headers([(b"x-ok", b"1"), (name, b"1"), (b"x-ok", b"1")]) is None


def test_a_sequence_split_over_two_values_is_not_decodable() -> None:
    assert decode_headers([(b"a", b"\xc3"), (b"b", b"\xa9")]) is None


NAME = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
PAIRS = st.lists(
    st.tuples(
        st.binary(max_size=3) | st.sampled_from([b"x-a", b"X-B", b"host"]),
        st.binary(max_size=4) | st.text(max_size=4).map(str.encode) | st.sampled_from([b"a", b"\t"]),
    ),
    max_size=4,
)


@given(PAIRS)
def test_decoding_is_the_rule_applied_to_each_header(raw: list[tuple[bytes, bytes]]) -> None:
    def decodable(name: bytes, value: bytes) -> bool:
        try:
            text = value.decode()
        except UnicodeDecodeError:
            return False
        plain = not any((ord(c) < 32 and c != "\t") or 127 <= ord(c) < 160 for c in text)
        return plain and NAME.fullmatch(name) is not None

    expected = None
    if all(decodable(name, value) for name, value in raw):
        expected = [(name.decode().lower(), value.decode()) for name, value in raw]
    assert decode_headers(raw) == expected


def test_by_default_all_but_the_sets_in_order_with_repeats() -> None:
    headers = [
        ("host", "hooks.example"),
        ("user-agent", "Stripe/1.0"),
        ("authorization", "Bearer t"),
        ("content-type", "application/json"),
        ("content-encoding", "gzip"),
        ("stripe-signature", "t=1,v1=2"),
        ("x-repeated", "1"),
        ("connection", "close"),
        ("x-ankusa-id", "forged"),
        ("x-repeated", "2"),
        ("x-forwarded-for", "192.0.2.1"),
    ]
    assert forwarded(headers, None) == (
        ("user-agent", "Stripe/1.0"),
        ("content-encoding", "gzip"),
        ("stripe-signature", "t=1,v1=2"),
        ("x-repeated", "1"),
        ("x-repeated", "2"),
        ("x-forwarded-for", "192.0.2.1"),
    )


def test_nothing_from_nothing() -> None:
    assert forwarded([], None) == () and forwarded([], frozenset({"x"})) == ()


@pytest.mark.parametrize("name", NEVER)
def test_never_forwarded_named_or_not(name: str) -> None:
    headers = [(name, "v"), ("x-kept", "1")]
    assert forwarded(headers, None) == (("x-kept", "1"),)
    assert forwarded(headers, forward_names([name, "X-Kept"])) == (("x-kept", "1"),)


@pytest.mark.parametrize("name", sorted(AUTHENTICATION))
def test_authentication_only_when_named(name: str) -> None:
    headers = [(name, "secret")]
    assert forwarded(headers, None) == ()
    assert forwarded(headers, forward_names(["x-other"])) == ()
    assert forwarded(headers, forward_names([name.upper()])) == ((name, "secret"),)


def test_with_names_only_those() -> None:
    headers = [("stripe-signature", "s"), ("user-agent", "u"), ("x-a", "1"), ("x-a", "2")]
    assert forwarded(headers, forward_names(("Stripe-Signature", "X-A", "absent"))) == (
        ("stripe-signature", "s"),
        ("x-a", "1"),
        ("x-a", "2"),
    )
    assert forwarded(headers, forward_names(())) == ()


@pytest.mark.parametrize("names", [None, ("x-hop", "x-kept", "x-later")])
def test_what_connection_names_is_not_forwarded(names: tuple[str, ...] | None) -> None:
    headers = [
        ("x-hop", "1"),
        ("connection", "Close, X-Hop,"),
        ("x-kept", "2"),
        ("connection", "\tx-later "),
        ("x-later", "3"),
    ]
    assert forwarded(headers, forward_names(names)) == (("x-kept", "2"),)


def test_forward_names() -> None:
    assert forward_names(None) is None
    assert forward_names(["X-A", "x-a"]) == frozenset({"x-a"})
