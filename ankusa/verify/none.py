"""`none`: a source that proves nothing; every hook verifies.

For demos, for senders inside a trusted network, and for providers that cannot sign. Takes no other key,
so that a secret left under it is an error and never a check that silently does not happen.
"""

from __future__ import annotations

from ankusa.verify.contract import Failure, Headers


class NoVerifier:
    """Accepts everything."""

    def verify(self, headers: Headers, body: bytes, at: int) -> Failure | None:
        return None
