"""The address table of spec 04: every block's first, last and neighbours, every IPv6 wrapping."""

import ipaddress

import pytest

from ankusa.sinks import addresses
from ankusa.sinks.egress import Egress

# (first, last, the address before, the address after); None: the neighbour lies in another refused block.
V4 = [
    ("0.0.0.0", "0.255.255.255", None, "1.0.0.0"),
    ("10.0.0.0", "10.255.255.255", "9.255.255.255", "11.0.0.0"),
    ("100.64.0.0", "100.127.255.255", "100.63.255.255", "100.128.0.0"),
    ("127.0.0.0", "127.255.255.255", "126.255.255.255", "128.0.0.0"),
    ("169.254.0.0", "169.254.255.255", "169.253.255.255", "169.255.0.0"),
    ("172.16.0.0", "172.31.255.255", "172.15.255.255", "172.32.0.0"),
    ("192.0.0.0", "192.0.0.255", "191.255.255.255", "192.0.1.0"),
    ("192.0.2.0", "192.0.2.255", "192.0.1.255", "192.0.3.0"),
    ("192.88.99.0", "192.88.99.255", "192.88.98.255", "192.88.100.0"),
    ("192.168.0.0", "192.168.255.255", "192.167.255.255", "192.169.0.0"),
    ("198.18.0.0", "198.19.255.255", "198.17.255.255", "198.20.0.0"),
    ("198.51.100.0", "198.51.100.255", "198.51.99.255", "198.51.101.0"),
    ("203.0.113.0", "203.0.113.255", "203.0.112.255", "203.0.114.0"),
    ("224.0.0.0", "239.255.255.255", "223.255.255.255", None),
    ("240.0.0.0", "255.255.255.255", None, None),
    ("168.63.129.16", "168.63.129.16", "168.63.129.15", "168.63.129.17"),
]
V6 = [
    ("4000::", "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff", "3fff:ffff:ffff:ffff:ffff:ffff:ffff:ffff", None),
    ("2001:db8::", "2001:db8:ffff:ffff:ffff:ffff:ffff:ffff", "2001:db7:ffff:ffff:ffff:ffff:ffff:ffff", "2001:db9::"),
    ("100::", "1fff:ffff:ffff:ffff:ffff:ffff:ffff:ffff", None, "2000::"),
    ("fc00::", "fdff:ffff:ffff:ffff:ffff:ffff:ffff:ffff", None, None),
    ("fe80::", "febf:ffff:ffff:ffff:ffff:ffff:ffff:ffff", None, None),
    ("fec0::", "feff:ffff:ffff:ffff:ffff:ffff:ffff:ffff", None, None),
    ("ff00::", "ff02::1", None, None),
    ("::", "::1", None, None),
]
PRIVATE = ["127.0.0.1", "10.1.2.3", "169.254.169.254", "192.168.1.1", "168.63.129.16", "255.255.255.255"]
PUBLIC = ["8.8.8.8", "1.1.1.1", "203.0.114.7", "128.0.0.1"]
GUARD = Egress()


def v6(value: int) -> str:
    return str(ipaddress.IPv6Address(value))


def v4(address: str) -> int:
    return int(ipaddress.IPv4Address(address))


def allowed(address: str) -> bool:
    return GUARD.judge_address(address) is None


@pytest.mark.parametrize(("first", "last", "before", "after"), V4 + V6)
def test_a_block_is_refused_to_its_edges_and_no_further(
    first: str, last: str, before: str | None, after: str | None
) -> None:
    assert not allowed(first)
    assert not allowed(last)
    assert before is None or allowed(before)
    assert after is None or allowed(after)


def test_the_table_has_exactly_the_blocks_tested_here() -> None:
    ends = {(e.base, e.base | ~e.mask & 0xFFFF_FFFF) for e in addresses.REFUSED_V4}
    assert ends == {(v4(first), v4(last)) for first, last, _, _ in V4}
    assert [e.text for e in addresses.REFUSED_V6] == ["2001:db8::/32"]


@pytest.mark.parametrize("address", [*PUBLIC, "2606:4700::1111", "2000::", "2a00:1450:4001::200e"])
def test_public_addresses_pass(address: str) -> None:
    assert allowed(address)


WRAPPINGS = {
    "v4-compatible": lambda c: c,
    "v4-mapped": lambda c: 0xFFFF << 32 | c,
    "v4-translated": lambda c: 0xFFFF << 48 | c,
    "NAT64 well-known": lambda c: 0x64_FF9B << 96 | c,
    "NAT64 local, length 96": lambda c: 0x64_FF9B_0001 << 80 | c,
    "NAT64 local, length 64": lambda c: 0x64_FF9B_0001 << 80 | c << 24,
    "NAT64 local, length 56": lambda c: 0x64_FF9B_0001 << 80 | c >> 24 << 64 | (c & 0xFF_FFFF) << 32,
    "NAT64 local, length 48": lambda c: 0x64_FF9B_0001 << 80 | c >> 16 << 64 | (c & 0xFFFF) << 40,
    "6to4": lambda c: 0x2002 << 112 | c << 80 | 0x1,
    "Teredo client": lambda c: 0x2001_0000 << 96 | v4("8.8.8.8") << 64 | c ^ 0xFFFF_FFFF,
    "Teredo server": lambda c: 0x2001_0000 << 96 | c << 64 | v4("8.8.8.8") ^ 0xFFFF_FFFF,
    "ISATAP": lambda c: 0x2A00_1450 << 96 | 0x0000_5EFE << 32 | c,
    "ISATAP, universal bit": lambda c: 0x2A00_1450 << 96 | 0x0200_5EFE << 32 | c,
    "ISATAP, group bit": lambda c: 0x2A00_1450 << 96 | 0x0100_5EFE << 32 | c,
}


@pytest.mark.parametrize("wrapping", WRAPPINGS)
@pytest.mark.parametrize("carried", PRIVATE)
def test_a_wrapped_private_address_is_refused(wrapping: str, carried: str) -> None:
    assert not allowed(v6(WRAPPINGS[wrapping](v4(carried))))


@pytest.mark.parametrize("wrapping", WRAPPINGS)
@pytest.mark.parametrize("carried", ["8.8.8.8", "1.1.1.1"])
def test_a_wrapped_public_address_passes(wrapping: str, carried: str) -> None:
    assert allowed(v6(WRAPPINGS[wrapping](v4(carried))))


@pytest.mark.parametrize(("first", "last", "before", "after"), V4)
def test_every_block_is_refused_when_wrapped_too(first: str, last: str, before: str | None, after: str | None) -> None:
    for wrap in (WRAPPINGS["v4-mapped"], WRAPPINGS["6to4"], WRAPPINGS["Teredo client"], WRAPPINGS["NAT64 well-known"]):
        assert not allowed(v6(wrap(v4(first))))
        assert not allowed(v6(wrap(v4(last))))
        assert before is None or allowed(v6(wrap(v4(before))))
        assert after is None or allowed(v6(wrap(v4(after))))


def test_a_local_nat64_address_cannot_choose_its_reading() -> None:
    private_48 = 0x64_FF9B_0001 << 80 | v4("10.0.0.1") >> 16 << 64 | (v4("10.0.0.1") & 0xFFFF) << 40
    assert not allowed(v6(private_48 | v4("8.8.8.8")))


def test_an_isatap_address_needs_a_good_prefix_too() -> None:
    assert not allowed(v6(0xFE80 << 112 | 0x0200_5EFE << 32 | v4("8.8.8.8")))


def test_wrapping_inside_wrapping_is_refused() -> None:
    assert not allowed(v6(0x2002 << 112 | v4("8.8.8.8") << 80 | 0x0000_5EFE << 32 | v4("10.0.0.1")))


@pytest.mark.parametrize(
    "address", ["fe80::1%eth0", "fe80::1%25eth0", "2a00::1%1", "", "localhost", "127.1", "0x7f000001", "1.2.3.4/8"]
)
def test_anything_but_a_plain_address_is_refused(address: str) -> None:
    assert not allowed(address)


def test_allowed_blocks_pass_wrapped_or_not_and_nothing_beside_them() -> None:
    guard = Egress(["127.0.0.0/8", "fd00::/8", "10.0.0.7"])
    for address in ("127.0.0.1", "::ffff:127.0.0.1", "fd00::1", "10.0.0.7", "8.8.8.8"):
        assert guard.judge_address(address) is None
    for address in ("10.0.0.6", "10.0.0.8", "::1", "fc00::1"):
        assert guard.judge_address(address) is not None
