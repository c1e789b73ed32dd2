"""What a verifier is asked and what it may answer (spec 02 "Verifiers").

Owns the words shared by every scheme: the headers it reads, the failure it returns, the error a wrong
`verify` section raises. It never knows a scheme, and nothing here reads a clock: `at` comes in.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Protocol

from msgspec import Struct

Headers = Mapping[str, str]
"""Request headers by lower-cased name. Of a repeated header the first value wins; the edge builds it."""

_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")


def is_header_name(text: str) -> bool:
    """Whether `text` is a header field name, in either case (RFC 9110 section 5.6.2, token)."""
    return _TOKEN.fullmatch(text) is not None


class Failure(Struct, frozen=True):
    """Why a hook did not verify. `reason` is a stable code that is answered, stored and counted."""

    reason: str


MISSING_SIGNATURE = Failure("missing_signature")
MISSING_TIMESTAMP = Failure("missing_timestamp")
MISSING_ID = Failure("missing_id")
MALFORMED_SIGNATURE = Failure("malformed_signature")
MALFORMED_TIMESTAMP = Failure("malformed_timestamp")
MALFORMED_ID = Failure("malformed_id")
TIMESTAMP_OUT_OF_TOLERANCE = Failure("timestamp_out_of_tolerance")
SIGNATURE_MISMATCH = Failure("signature_mismatch")


class Verifier(Protocol):
    """One source's check, built once and used for every hook. Has no state; safe from any thread."""

    def verify(self, headers: Headers, body: bytes, at: int) -> Failure | None:
        """None when the hook is what its sender signed, else why not. Never raises.

        `body` is the raw request body. `at` is unix ms: the time the timestamp's tolerance is judged at,
        which is the time of receipt also when a held hook is verified again later.
        """


class VerifySpecError(Exception):
    """A `verify` section is wrong. `field` is relative to it, such as "secret"; no secret is in `message`."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(f"{field}: {message}")
        self.field = field
        self.message = message
