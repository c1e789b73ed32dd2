"""Which client an address is, and what ordered rules say of it (spec 02 "Route guard").

Addresses are compared as numbers of their version; an IPv4 address in IPv6 clothing (`::ffff:1.2.3.4`) is the IPv4
address, in rules as in requests. Pure: it reads no request.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from schemas.routes import IpRule

Address = tuple[int, int]
"""`(version, value)`."""

_MAPPED_BITS = 96


class Cidr(NamedTuple):
    """A block of addresses: `value & mask == base` of that version."""

    version: int
    base: int
    mask: int

    def holds(self, address: Address) -> bool:
        version, value = address
        return version == self.version and value & self.mask == self.base


def normal_cidr(text: str) -> str:
    """The normal spelling of `10.0.0.0/8`, `2001:db8::1` and the like. ValueError: none of these, or host bits set."""
    if "%" in text:
        raise ValueError("holds a zone, which means something on one machine only")
    try:
        network = ipaddress.ip_network(text, strict=False)
    except ValueError:
        raise ValueError("is not a CIDR such as 10.0.0.0/8, nor an address") from None
    host, _, length = text.partition("/")
    if length and ipaddress.ip_address(host) != network.network_address:
        raise ValueError(f"has bits set behind its length; {network} is the block it is in")
    if isinstance(network, ipaddress.IPv6Network) and network.prefixlen >= _MAPPED_BITS:
        mapped = network.network_address.ipv4_mapped
        if mapped is not None:
            return f"{mapped}/{network.prefixlen - _MAPPED_BITS}"
    return str(network)


def cidr(text: str) -> Cidr:
    """A block, from any spelling that `normal_cidr` takes."""
    network = ipaddress.ip_network(normal_cidr(text))
    return Cidr(network.version, int(network.network_address), int(network.netmask))


def address(text: str) -> Address | None:
    """One address, with or without brackets and port as proxies write them; None for anything else."""
    bare = text.strip()
    if bare.startswith("["):
        bare, closed, _ = bare[1:].partition("]")
        if not closed:
            return None
    elif bare.count(":") == 1:
        bare = bare.partition(":")[0]
    if "%" in bare:
        return None
    try:
        parsed = ipaddress.ip_address(bare)
    except ValueError:
        return None
    if isinstance(parsed, ipaddress.IPv6Address) and parsed.ipv4_mapped is not None:
        parsed = parsed.ipv4_mapped
    return parsed.version, int(parsed)


def client(peer: Address | None, forwarded: Sequence[str], trusted: Sequence[Cidr]) -> Address | None:
    """Who sent a request: its peer, or what trusted proxies say, read from the nearest on.

    `forwarded` are the entries of `X-Forwarded-For` in order. An entry counts only as far as all behind it are trusted;
    the first that is not is the client. None when nobody knows: no peer, or a trusted proxy wrote no address.
    """
    found = peer
    for entry in reversed(forwarded):
        if found is None or not _in(found, trusted):
            break
        found = address(entry)
    return found


class RuleList:
    """Ordered rules: the first that holds an address decides."""

    def __init__(self, rules: Iterable[IpRule]) -> None:
        self._rules = [(cidr(rule.cidr), rule) for rule in rules]

    def __bool__(self) -> bool:
        return bool(self._rules)

    def first(self, found: Address) -> IpRule | None:
        return next((rule for block, rule in self._rules if block.holds(found)), None)


def _in(found: Address, blocks: Sequence[Cidr]) -> bool:
    return any(block.holds(found) for block in blocks)
