"""Addresses, blocks and the chain of proxies: who a client is, and that nobody can say so of himself."""

from __future__ import annotations

import pytest

from ankusa.core.ip_rules import RuleList, address, cidr, client, normal_cidr
from schemas.routes import IpRule

PROXIES = [cidr("10.0.0.0/8"), cidr("2001:db8:1::/48")]


@pytest.mark.parametrize(
    ("text", "normal"),
    [
        ("10.0.0.0/8", "10.0.0.0/8"),
        ("192.0.2.7", "192.0.2.7/32"),
        ("0.0.0.0/0", "0.0.0.0/0"),
        ("::/0", "::/0"),
        ("2001:DB8::1", "2001:db8::1/128"),
        ("2001:db8:0:0::/64", "2001:db8::/64"),
        ("::ffff:192.0.2.0/120", "192.0.2.0/24"),
        ("::ffff:192.0.2.7", "192.0.2.7/32"),
        ("::ffff:0:0/96", "0.0.0.0/0"),
        ("::ffff:0:0/95", None),
        ("10.0.0.0/255.0.0.0", "10.0.0.0/8"),
    ],
)
def test_normal_spellings(text: str, normal: str | None) -> None:
    if normal is None:
        with pytest.raises(ValueError, match="bits set"):
            normal_cidr(text)
    else:
        assert normal_cidr(text) == normal == normal_cidr(normal)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("10.0.0.1/8", r"10\.0\.0\.0/8 is the block"),
        ("2001:db8::1/32", "bits set"),
        ("10.0.0.0/33", "not a CIDR"),
        ("example.com", "not a CIDR"),
        ("10.0.0", "not a CIDR"),
        ("", "not a CIDR"),
        ("fe80::1%eth0", "zone"),
        ("010.0.0.1", "not a CIDR"),
    ],
)
def test_what_is_no_block(text: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        normal_cidr(text)


@pytest.mark.parametrize(
    ("text", "same_as"),
    [
        ("192.0.2.7", "192.0.2.7"),
        (" 192.0.2.7 ", "192.0.2.7"),
        ("192.0.2.7:51234", "192.0.2.7"),
        ("::ffff:192.0.2.7", "192.0.2.7"),
        ("[2001:db8::1]:443", "2001:db8::1"),
        ("[2001:db8::1]", "2001:db8::1"),
        ("2001:DB8:0::1", "2001:db8::1"),
    ],
)
def test_addresses_as_proxies_write_them(text: str, same_as: str) -> None:
    assert address(text) == address(same_as) is not None


@pytest.mark.parametrize(
    "text", ["", "unknown", "_hidden", "1.2.3", "1.2.3.4.5", "[::1", "fe80::1%eth0", "1.2.3.4/32", "a:b"]
)
def test_what_is_no_address(text: str) -> None:
    assert address(text) is None


def test_an_ipv4_rule_holds_its_address_in_ipv6_clothing() -> None:
    found = address("::ffff:192.0.2.7")
    assert found is not None
    rules = RuleList([IpRule("deny", "192.0.2.0/24")])
    assert rules.first(found) == IpRule("deny", "192.0.2.0/24")
    assert RuleList([IpRule("deny", "::/0")]).first(found) is None  # all of IPv6 is not IPv4


def test_the_first_rule_counts() -> None:
    one, two = IpRule("allow", "10.1.0.0/16"), IpRule("deny", "10.0.0.0/8")
    rules = RuleList([one, two])
    inside, outside, neither = address("10.1.2.3"), address("10.2.0.1"), address("192.0.2.1")
    assert inside and outside and neither
    assert (rules.first(inside), rules.first(outside), rules.first(neither)) == (one, two, None)
    assert RuleList([two, one]).first(inside) == two
    assert not RuleList([])


@pytest.mark.parametrize(
    ("peer", "forwarded", "who"),
    [
        # Of a peer that is not trusted nothing is believed.
        ("192.0.2.7", ["10.0.0.1"], "192.0.2.7"),
        ("192.0.2.7", [], "192.0.2.7"),
        # The nearest entry that is no proxy of ours is the client; what it wrote itself, to the left, is not read.
        ("10.0.0.1", ["192.0.2.7"], "192.0.2.7"),
        ("10.0.0.1", ["127.0.0.1", "192.0.2.7"], "192.0.2.7"),
        ("10.0.0.1", ["garbage", "192.0.2.7", "10.9.9.9"], "192.0.2.7"),
        ("2001:db8:1::5", ["192.0.2.7:1234", "10.0.0.2"], "192.0.2.7"),
        ("::ffff:10.0.0.1", ["192.0.2.7"], "192.0.2.7"),
        # Proxies all the way: the farthest.
        ("10.0.0.1", ["10.0.0.2", "10.0.0.3"], "10.0.0.2"),
        ("10.0.0.1", [], "10.0.0.1"),
        # A trusted proxy that wrote no address: nobody knows.
        ("10.0.0.1", ["192.0.2.7", "unknown"], None),
        ("10.0.0.1", ["192.0.2.7", ""], None),
    ],
)
def test_who_a_client_is(peer: str, forwarded: list[str], who: str | None) -> None:
    assert client(address(peer), forwarded, PROXIES) == (None if who is None else address(who))


def test_a_peer_without_an_address_is_nobody() -> None:
    assert client(None, ["192.0.2.7"], PROXIES) is None
    assert client(address("192.0.2.7"), ["1.2.3.4"], []) == address("192.0.2.7")
