"""The store's keys as they are shown: no credential of any cloud is told."""

from __future__ import annotations

import json

import pytest

from ankusa.claim_check.object_blobs import OPTIONS
from ankusa.redact import HIDDEN, redact
from schemas.config import ClaimCheck, ClaimStore, Config

SHOWN = {
    *("endpoint", "region", "account_name", "tenant_id", "client_id"),
    *("virtual_hosted_style_request", "skip_signature", "server_side_encryption", "sse_kms_key_id"),
    "service_account",  # the path of a file
}


@pytest.mark.parametrize("scheme", sorted(OPTIONS))
def test_no_credential_is_shown(scheme: str) -> None:
    options = {name: f"value-of-{name}" for name in OPTIONS[scheme]}
    store = ClaimStore(type="object", url=f"{scheme}://bucket/prefix", options=options)
    shown = redact(Config(claim_check=ClaimCheck(store=store)))["claim_check"]["store"]
    for name, value in shown["options"].items():
        assert value == (options[name] if name in SHOWN else HIDDEN), name
    assert not any(value in repr(store) for value in options.values())
    assert json.dumps(shown)
