"""The signed template: which bytes a sender signs, written as `{id}.{timestamp}.{body}`.

Owns its grammar and its rendering. The body is never rendered, copied or decoded: a template is what
comes before it and what comes after it, and the engine feeds the three to the hash in turn.
"""

from __future__ import annotations

import re

from msgspec import Struct

from ankusa.verify.contract import VerifySpecError

_PLACEHOLDER = re.compile(r"\{([^{}]*)\}")
_KNOWN = ("body", "timestamp", "id")


class Slot(Struct, frozen=True):
    """A place that a header's value fills: "timestamp" or "id"."""

    name: str


Piece = bytes | Slot


class Template(Struct, frozen=True):
    """A compiled template: the pieces on either side of the body."""

    before: tuple[Piece, ...]
    after: tuple[Piece, ...]

    def uses(self, name: str) -> bool:
        """Whether `{name}` stands in it."""
        return Slot(name) in self.before or Slot(name) in self.after


def compile_template(signed: str) -> Template:
    """Compile `signed`. Raises VerifySpecError on field "signed": an unknown placeholder, a stray brace,
    or anything but exactly one `{body}`."""
    before: list[Piece] = []
    after: list[Piece] = []
    bodies = 0
    for position, part in enumerate(_PLACEHOLDER.split(signed)):
        side = after if bodies else before
        if position % 2 == 0:  # literal text; the odd parts are what stood between braces
            if "{" in part or "}" in part:
                raise VerifySpecError("signed", "has a brace that is no placeholder")
            if part:
                side.append(part.encode())
        elif part == "body":
            bodies += 1
        elif part in _KNOWN:
            side.append(Slot(part))
        else:
            raise VerifySpecError("signed", f"unknown placeholder {{{part}}}; known: {{body}}, {{timestamp}}, {{id}}")
    if bodies != 1:
        raise VerifySpecError("signed", "must contain {body} exactly once")
    return Template(before=tuple(before), after=tuple(after))


def render(pieces: tuple[Piece, ...], timestamp: str, id: str) -> bytes:
    """The bytes of one side. `timestamp` and `id` are ASCII, as they stood in the request."""
    if not pieces:
        return b""
    return b"".join(
        [
            piece if isinstance(piece, bytes) else (timestamp if piece.name == "timestamp" else id).encode()
            for piece in pieces
        ]
    )
