"""The egress guard: which URLs and addresses the node's outgoing HTTP clients may reach (spec 04).

Owns the allow list, the judging of URLs and the judged resolution of names. It opens no connection: a client
must connect only to an address `resolve` gave it. URLs are parsed by the HTTP client's own parser, so the
guard and the client cannot read one differently.
"""

from __future__ import annotations

import asyncio
import re
import socket
from collections.abc import Awaitable, Callable, Sequence
from typing import ClassVar

from msgspec import Struct
from pyreqwest.http import Url

from ankusa.sinks import addresses

Resolver = Callable[[str, int], Awaitable[list[str]]]
"""(host, port) to addresses in order of preference; OSError when the name has none or nobody answers."""

_ABSOLUTE = re.compile(r"https?://([^/?#]+)", re.IGNORECASE)
# The URL parser drops or rewrites these before it reads the rest; nobody writes them on purpose.
_SLIPPERY = re.compile(r"[\x00-\x20\x7f\\]")
_HOST = re.compile(r"(?=.{1,253}\Z)[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?(\.[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?)*")
_LOOPBACK_NAMES = frozenset({"localhost", "localhost.localdomain", "ip6-localhost", "ip6-loopback"})
_LOOPBACKS = ("127.0.0.1", "::1")


class EgressSpecError(ValueError):
    """An entry of `egress.allow` is neither a CIDR, an address nor an exact host. `entry` is it, as written."""

    def __init__(self, entry: object) -> None:
        super().__init__(f"{entry!r} is not a CIDR (10.0.0.0/8), an address (10.1.2.3, ::1) or an exact host name")
        self.entry = entry


class Refusal(Struct, frozen=True):
    """The guard's no. `str()` of it is the stable word and the reason; no userinfo, path or query is in it.

    `allowable` says that `egress.allow` could let the destination through.
    """

    WORD: ClassVar[str] = "egress_denied"
    reason: str
    allowable: bool = False

    def __str__(self) -> str:
        return f"{self.WORD}: {self.reason}"


class Unresolved(Struct, frozen=True):
    """The name has no address, or the resolver could not say; a later try may differ."""

    reason: str


class Destination(Struct, frozen=True):
    """A URL that may be asked for, once its host's addresses are judged.

    `url` is the normalised spelling. `host` is lower-case, punycode, without the brackets of an IPv6 literal.
    `literal`: the host is an address, judged already.
    """

    url: str
    scheme: str
    host: str
    port: int
    literal: bool


async def system_resolver(host: str, port: int) -> list[str]:
    """What the operating system says."""
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [str(entry[4][0]) for entry in found]


class Egress:
    """The guard with its allow list. Immutable; safe to share.

    `allow`: CIDRs and addresses, whose members may be reached whatever the table says, and exact host names
    (any case, with or without the root dot), whose addresses may all be reached.
    """

    def __init__(self, allow: Sequence[str] = (), resolver: Resolver = system_resolver) -> None:
        """Raises EgressSpecError, naming the entry."""
        blocks: list[addresses.Block] = []
        hosts: set[str] = set()
        for entry in allow:
            parsed = _allow_entry(entry)
            if isinstance(parsed, str):
                hosts.add(parsed)
            else:
                blocks.append(parsed)
        self._blocks, self._hosts = tuple(blocks), frozenset(hosts)
        self._resolver = resolver

    def judge_address(self, ip: str) -> Refusal | None:
        """None when a connection to `ip` may be opened. Anything but one plainly spelled address is refused."""
        parsed = addresses.parse(ip)
        if parsed is None:
            return Refusal("not an IP address, or one with a zone")
        refusing = addresses.refusing_block(*parsed, self._blocks)
        return Refusal(f"{ip} may not be reached ({refusing})", allowable=True) if refusing else None

    def judge_url(self, url: str) -> Refusal | Destination:
        """Judge all that a URL shows without asking a resolver: scheme, userinfo, port, and an address as host."""
        absolute = _ABSOLUTE.match(url)
        if absolute is None:
            return Refusal("not an http:// or https:// URL with a host")
        if "@" in absolute[1]:
            return Refusal("the URL carries a user name or password")
        if _SLIPPERY.search(url):
            return Refusal("the URL holds a space, a control character or a backslash")
        try:
            parsed = Url(url)
        except ValueError as error:
            return Refusal(f"not a URL: {error}")
        host, port = parsed.host_str or "", parsed.port_or_known_default
        if not host or not port:
            return Refusal("the URL has no host or port 0")
        literal = parsed.domain is None
        host = host.removeprefix("[").removesuffix("]")
        if literal and (refusal := self.judge_address(host)):
            return refusal
        return Destination(str(parsed), parsed.scheme, host, port, literal)

    def check_destination(self, url: str) -> Refusal | None:
        """What config loading and the admin API refuse: `judge_url`, and the names that mean the node itself."""
        judged = self.judge_url(url)
        if isinstance(judged, Refusal):
            return judged
        name = judged.host.removesuffix(".")
        names_loopback = name in _LOOPBACK_NAMES or name.endswith(".localhost")
        if not names_loopback or name in self._hosts or any(self.judge_address(ip) is None for ip in _LOOPBACKS):
            return None
        return Refusal(f"{judged.host} names the node itself", allowable=True)

    async def resolve(self, destination: Destination) -> list[str] | Refusal | Unresolved:
        """The addresses that may be connected to, in the resolver's order, each judged now.

        When only some are refused, the others are returned and nothing else may be connected to: a name with a
        private address beside a public one is common in split DNS and gives an attacker nothing, as the
        private one is never used. When all are refused, so is the destination.
        """
        if destination.literal:
            refusal = self.judge_address(destination.host)
            return refusal or [destination.host]
        try:
            found = list(dict.fromkeys(await self._resolver(destination.host, destination.port)))
        except (OSError, UnicodeError) as error:
            return Unresolved(f"cannot resolve {destination.host}: {getattr(error, 'strerror', None) or 'bad name'}")
        if not found:
            return Unresolved(f"cannot resolve {destination.host}: no address")
        if destination.host.removesuffix(".") in self._hosts:
            return [ip for ip in found if addresses.parse(ip)] or Refusal(f"{destination.host} has no usable address")
        good = [ip for ip in found if self.judge_address(ip) is None]
        # The address stays unsaid: who may set a sink URL must not learn what internal names resolve to.
        return good or Refusal(f"{destination.host} resolves to nothing that may be reached")


def _allow_entry(entry: object) -> addresses.Block | str:
    if not isinstance(entry, str):
        raise EgressSpecError(entry)
    try:
        return addresses.block(entry)
    except ValueError:
        pass
    try:
        parsed = Url(f"http://{entry}/")
    except ValueError:
        raise EgressSpecError(entry) from None
    host = (parsed.domain or "").removesuffix(".")
    # Compared with what was written, so that a port, a path, a wildcard or an odd spelling of an address is an error.
    if not _HOST.fullmatch(host) or str(parsed) != f"http://{parsed.host_str}/" or set(entry) & set("/:@?#*%"):
        raise EgressSpecError(entry)
    return host
