"""Verification: does a hook come from whom its source says (spec 02)?

Owns the choice of scheme and the rule which keys each type takes. The schemes are one file each: `none`,
the presets, and `hmac`, which is the engine they all run on. Nothing here does I/O or reads a clock.
"""

from __future__ import annotations

from ankusa.verify import github, hmac, shopify, slack, standard_webhooks, stripe
from ankusa.verify.contract import Failure, Headers, Verifier, VerifySpecError
from ankusa.verify.none import NoVerifier
from ankusa.verify.secret import keys
from schemas.config import Verify

__all__ = ["Failure", "Headers", "Verifier", "VerifySpecError", "build_verifier"]

_PRESETS = {
    "stripe": stripe.SCHEME,
    "github": github.SCHEME,
    "standard_webhooks": standard_webhooks.SCHEME,
    "shopify": shopify.SCHEME,
    "slack": slack.SCHEME,
}

_DESCRIBING = (
    "signature_header",
    "signed",
    "hash",
    "encoding",
    "sig_prefix",
    "timestamp_header",
    "id_header",
    "parse",
    "secret_decode",
)


def build_verifier(spec: Verify) -> Verifier:
    """The verifier of a `verify` section. Raises VerifySpecError naming the key that is wrong or useless."""
    if spec.type == "none":
        _refuse(spec, ("secret", "tolerance_seconds", *_DESCRIBING), "type none takes no other key")
        return NoVerifier()
    if spec.type == "hmac":
        scheme = hmac.described(spec)
    else:
        _refuse(spec, _DESCRIBING, "only type hmac takes this key")
        scheme = _PRESETS[spec.type]
    if not scheme.has_timestamp:
        _refuse(spec, ("tolerance_seconds",), "has no use: no timestamp is sent")
    tolerance_seconds = spec.tolerance_seconds or hmac.DEFAULT_TOLERANCE_SECONDS
    return hmac.HmacVerifier(scheme, keys(spec.secret, scheme.secret_decode), tolerance_seconds * 1000)


def _refuse(spec: Verify, fields: tuple[str, ...], why: str) -> None:
    """A key that would be ignored is an error: its writer believed that it did something."""
    for field in fields:
        if getattr(spec, field) is not None:
            raise VerifySpecError(field, why)
