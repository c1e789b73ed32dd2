"""The address table: which IP addresses an outgoing connection may reach (spec 04, egress guard).

Owns the refused blocks and the unwrapping of IPv6 addresses that carry an IPv4 one. Pure: it never resolves a
name and never asks `ipaddress` whether an address is global, because older patch releases of Python answer
that wrongly (CVE-2024-4032). Addresses are (version, integer value) here.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Sequence
from typing import NamedTuple

_V4_MASK = 0xFFFF_FFFF


class Block(NamedTuple):
    """A CIDR block: `value & mask == base` of that IP version."""

    version: int
    base: int
    mask: int
    text: str

    def holds(self, version: int, value: int) -> bool:
        return version == self.version and value & self.mask == self.base


def block(cidr: str) -> Block:
    """Parse `10.0.0.0/8`, `::1` and the like. ValueError: not a CIDR or address, a zone, or host bits are set."""
    if "%" in cidr:
        raise ValueError("a zone means something on one machine only")
    network = ipaddress.ip_network(cidr, strict=True)
    return Block(network.version, int(network.network_address), int(network.netmask), str(network))


def parse(address: str) -> tuple[int, int] | None:
    """(version, value) of one address in its standard spelling; None for anything else, a zone id included."""
    if "%" in address:
        return None
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return None
    return parsed.version, int(parsed)


# Spec 04, in its order. 168.63.129.16 is a cloud's host agent on a public address.
REFUSED_V4 = tuple(
    block(cidr)
    for cidr in (
        "0.0.0.0/8",
        "10.0.0.0/8",
        "100.64.0.0/10",
        "127.0.0.0/8",
        "169.254.0.0/16",
        "172.16.0.0/12",
        "192.0.0.0/24",
        "192.0.2.0/24",
        "192.88.99.0/24",
        "192.168.0.0/16",
        "198.18.0.0/15",
        "198.51.100.0/24",
        "203.0.113.0/24",
        "224.0.0.0/4",
        "240.0.0.0/4",
        "168.63.129.16/32",
    )
)
GLOBAL_V6 = block("2000::/3")
REFUSED_V6 = (block("2001:db8::/32"),)


def _low32(value: int) -> tuple[int, ...]:
    return (value & _V4_MASK,)


def _sixtofour(value: int) -> tuple[int, ...]:
    return (value >> 80 & _V4_MASK,)


def _teredo(value: int) -> tuple[int, ...]:
    """The server in clear, the client with every bit turned round (RFC 4380)."""
    return (value >> 64 & _V4_MASK, value & _V4_MASK ^ _V4_MASK)


def _local_nat64(value: int) -> tuple[int, ...]:
    """Every place RFC 6052 may put the IPv4 address under 64:ff9b:1::/48, whose real length only the network knows.

    All of them are judged, or an address would choose the reading that suits it; readings inside 0/8 are what an
    unused place looks like and are left out, unless nothing else is there. This refuses some harmless addresses
    of long local prefixes; `egress.allow` is for those.
    """
    upper48 = value >> 64 & 0xFFFF  # bits 48 to 63
    readings = (
        upper48 << 16 | value >> 40 & 0xFFFF,  # /48: bits 48-63 and 72-87
        (upper48 & 0xFF) << 24 | value >> 32 & 0xFF_FFFF,  # /56: bits 56-63 and 72-95
        value >> 24 & _V4_MASK,  # /64: bits 72-103
        value & _V4_MASK,  # /96: bits 96-127
    )
    return tuple(reading for reading in readings if reading >> 24) or (0,)


# Prefixes that only carry: the outer address is no place of its own, what it carries decides.
_CARRIERS: tuple[tuple[str, Block, Callable[[int], tuple[int, ...]]], ...] = (
    ("v4-compatible", block("::/96"), _low32),  # holds :: and ::1 too, as 0.0.0.0 and 0.0.0.1
    ("v4-mapped", block("::ffff:0:0/96"), _low32),
    ("v4-translated", block("::ffff:0:0:0/96"), _low32),
    ("NAT64", block("64:ff9b::/96"), _low32),
    ("NAT64", block("64:ff9b:1::/48"), _local_nat64),
    ("6to4", block("2002::/16"), _sixtofour),
    ("Teredo", block("2001::/32"), _teredo),
)
# RFC 5214: interface id 0000:5efe or 0200:5efe (u and g bits free), under any prefix.
_ISATAP_ID, _ISATAP_MASK = 0x0000_5EFE, 0xFCFF_FFFF


def refusing_block(version: int, value: int, allowed: Sequence[Block]) -> str | None:
    """Why an address may not be reached, as the block that refuses it; None when it may.

    An address in `allowed` may be reached whatever it carries. An IPv6 address that carries IPv4 ones may be
    reached only if each of them may; an ISATAP one only if its own prefix may be too.
    """
    if any(entry.holds(version, value) for entry in allowed):
        return None
    if version == 4:
        return next((entry.text for entry in REFUSED_V4 if entry.holds(4, value)), None)
    only_carries = False
    for name, prefix, unwrap in _CARRIERS:
        if prefix.holds(6, value):
            only_carries = True
            for carried in unwrap(value):
                if refusing := refusing_block(4, carried, allowed):
                    return f"{name} of {refusing}"
    if value >> 32 & _ISATAP_MASK == _ISATAP_ID and (refusing := refusing_block(4, value & _V4_MASK, allowed)):
        return f"ISATAP of {refusing}"
    if only_carries:
        return None
    if not GLOBAL_V6.holds(6, value):
        return f"outside {GLOBAL_V6.text}"
    return next((entry.text for entry in REFUSED_V6 if entry.holds(6, value)), None)
